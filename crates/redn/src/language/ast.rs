//! What a program is once it is read.

/// How many bytes a number takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "names are the types'")]
pub enum Type {
    U16,
    U32,
    U48,
    U64,
    /// An address: 8 bytes, of which the upper two are 0.
    Addr,
    /// 8 bytes in the host's order, as `mov` takes them. The others are big-endian in memory.
    Word,
}

impl Type {
    /// Bytes that it takes in memory.
    pub fn bytes(self) -> u8 {
        match self {
            Type::U16 => 2,
            Type::U32 => 4,
            Type::U48 => 6,
            Type::U64 | Type::Addr | Type::Word => 8,
        }
    }

    /// Bytes that a comparison looks at: the others are 0.
    pub fn compared(self) -> u8 {
        if self == Type::Addr { 6 } else { self.bytes() }
    }

    /// The number as this type holds it.
    pub fn cut(self, number: u64) -> u64 {
        if self.bytes() == 8 { number } else { number & ((1 << (8 * self.bytes())) - 1) }
    }
}

/// A file: one program, its data, and what it is run with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// The program.
    pub program: Program,
    /// Regions' contents.
    pub data: Vec<Data>,
    /// Values of the arguments unless others are given.
    pub run: Vec<(String, Atom)>,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What the client sends.
    pub params: Vec<Param>,
    /// Memory that it may use, and for what.
    pub regions: Vec<Region>,
    /// What it does.
    pub body: Vec<Statement>,
    /// Its order is wrong on purpose: nothing stands between a WQE and what changes it.
    pub unordered: bool,
    /// Where it begins.
    pub line: u32,
}

/// An argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// How wide it is.
    pub ty: Type,
    /// Where it stands.
    pub line: u32,
}

/// What a region is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// `let .. = read`: its key is known to READs only.
    Read,
    /// Replies are sent from it: its key is known to replies only.
    Source,
    /// `mov` reads and writes its words.
    Memory,
}

/// A region that a program declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// What for.
    pub right: Right,
    /// Where it stands.
    pub line: u32,
}

/// A region's contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// The region.
    pub name: String,
    /// Bytes.
    pub len: u64,
    /// Items by offset.
    pub items: Vec<(u64, Item)>,
    /// Where it stands.
    pub line: u32,
}

/// What stands in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A number, big-endian.
    Field(Type, Atom),
    /// A word in the host's byte order, as `mov` takes it.
    Word(Atom),
    /// Bytes.
    Text(Vec<u8>),
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Atom {
    /// A number.
    Number(u64),
    /// The address of a byte of a region.
    Address(String, u64),
    /// A variable or an argument.
    Name(String),
    /// A field of what was read.
    Field(String, String),
}

/// How two values are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "names say it")]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// A condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// All 64 bits are compared, in two tests.
    pub wide: bool,
    /// The left side.
    pub left: Atom,
    /// How.
    pub compare: Compare,
    /// The right side.
    pub right: Atom,
}

/// How often a loop is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// At most so often: each round has WQEs of its own.
    Unroll(u32),
    /// Without bound: the same WQEs are executed again.
    Recycle,
}

/// What a reply carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carries {
    /// Nothing.
    Nothing,
    /// A variable's 8 bytes.
    Value(Atom),
    /// Bytes of a region: address and length.
    Piece(String, Atom, Atom),
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Where it stands.
    pub line: u32,
    /// What it does.
    pub kind: Kind,
}

/// What a statement does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `let NAME = read REGION[AT] { FIELD: TYPE, .. }`
    Let(String, String, Atom, Vec<(String, Type)>),
    /// `var NAME: TYPE`
    Var(String, Type),
    /// `if CONDITION { .. } else { .. }`
    If(Condition, Vec<Statement>, Vec<Statement>),
    /// `while CONDITION unroll N { .. }`, `loop recycle { .. }`
    Loop(Option<Condition>, Times, Vec<Statement>),
    /// `break`
    Break,
    /// `mov NAME, VALUE`; `NAME = VALUE`
    Set(String, Atom),
    /// `mov NAME, [VALUE + VALUE]`
    Load(String, Atom, Option<Atom>),
    /// `mov [VALUE + VALUE], VALUE`
    Store(Atom, Option<Atom>, Atom),
    /// `NAME += VALUE`
    Add(String, Atom),
    /// `NAME = pick KEY { KEY: VALUE, .. }`: the value of the last key that is not greater, or else the first
    /// one's.
    Pick(String, Atom, Vec<(Atom, Atom)>),
    /// `reply CARRIES imm N`
    Reply(Carries, Option<u32>),
}
