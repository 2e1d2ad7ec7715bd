//! Random programs, each from one seed: every statement in every place where it may stand, on values that
//! are often equal and sometimes differ in one byte only.
//!
//! A program ends, whatever it does before, by `reply a imm` [`LAST`]: a client that has got it has got all.

/// Immediate of the last reply; no other one has it.
pub const LAST: u32 = 7;
/// Replies of a program at most, the last one included: as many receives has a client.
const REPLIES_MAX: u64 = 12;
/// Entries of the table that programs read, and bytes of each.
const ENTRIES: u64 = 8;
const STRIDE: u64 = 64;
/// Words of the memory that programs move in.
const WORDS: u64 = 16;
/// Fields of an entry, one after the other: those at its beginning, and those behind them. In a cell each of
/// their bytes takes a scatter entry, of which a READ has 30.
const FIRST: [Field; 5] = [("k", "u48"), ("next", "addr"), ("n", "u32"), ("ptr", "addr"), ("s", "u16")];
const SECOND: [Field; 4] = [("h", "u64"), ("at", "addr"), ("n", "u32"), ("v", "word")];
/// Bytes of the first ones.
const BEHIND: u64 = 28;
/// Numbers of 48 bits that differ in one byte.
const NEAR: [u64; 6] = [1, 0x0101, 0x8000_0000_0001, 0x0100_0000_0001, 0xffff_ffff_ffff, 0x0001_0000_0001];
/// Numbers of 64 bits that differ in one byte, of the lower six or of the upper two.
const WIDE: [u64; 5] = [1, 0x0001_0000_0000_0001, 0x8000_0000_0000_0001, 0x0101, u64::MAX];

/// A name and a type.
type Field = (&'static str, &'static str);

/// The text of a seed's program, with its data and its arguments.
pub fn program(seed: u64) -> String {
    let mut this = Generator {
        rng: fastrand::Rng::with_seed(seed),
        text: String::new(),
        names: 0,
        reads: Vec::new(),
        replies: 1,
        rounds: 1,
    };
    let depth = this.rng.u32(1..4);
    this.block(Scope { depth, loops: false, ring: false });
    let body = core::mem::take(&mut this.text);
    format!(
        "program p(x: u48, y: u48, z: u64, s: u16, node: addr, p: addr) {{\nregion words: memory\n\
         region table: read\nregion values: source\nvar a: u48\nvar b: u48\nvar c: u48\nvar w: u64\n\
         var q: u48\n{body}reply a imm {LAST}\n}}\n{}",
        this.data()
    )
}

struct Generator {
    rng: fastrand::Rng,
    text: String,
    /// Variables and reads that have names of their own.
    names: u32,
    /// What was read and is known here: its name, and its fields.
    reads: Vec<(String, &'static [Field])>,
    /// Replies that the program makes at most, and how often what is made here is executed.
    replies: u64,
    rounds: u64,
}

/// Where a statement stands.
#[derive(Clone, Copy)]
struct Scope {
    /// Blocks that may be within it.
    depth: u32,
    /// In a loop, which `break` leaves.
    loops: bool,
    /// In a recycled loop, however deep.
    ring: bool,
}

impl Generator {
    fn data(&mut self) -> String {
        let words: Vec<String> = (0..WORDS).map(|_| format!("word {}", self.number())).collect();
        let entry = |n: u64| {
            let next = self.rng.u64(0..=ENTRIES);
            let next = if next == ENTRIES { "0".to_owned() } else { format!("&table+{}", STRIDE * next) };
            let (key, wide, word) = (self.number(), self.wide_number(), 8 * self.rng.u64(0..WORDS));
            format!(
                "{}: u48 {key}, addr {next}, u32 {}, addr &words+{word}, u16 {}, u64 {wide}, \
                 addr &values+{}, u32 {}, word {};",
                STRIDE * n,
                self.rng.u64(0..4),
                self.rng.u64(0..4),
                self.rng.u64(0..48),
                self.rng.u64(0..9),
                self.wide_number(),
            )
        };
        let entries: Vec<String> = (0..ENTRIES).map(entry).collect();
        format!(
            "data words {} {{ 0: {} }}\ndata table {} {{ {} }}\n\
             data values 64 {{ 0: \"a value of sixty-four bytes, of which replies carry some, or all\" }}\n\
             run x = {}, y = {}, z = {}, s = {}, node = &table+{}, p = &words+{}\n",
            8 * WORDS,
            words.join(", "),
            STRIDE * ENTRIES,
            entries.join(" "),
            self.number(),
            self.number(),
            self.wide_number(),
            self.rng.u64(0..4),
            STRIDE * self.rng.u64(0..ENTRIES),
            8 * self.rng.u64(0..WORDS / 4),
        )
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.usize(..from.len())]
    }

    /// At most 48 bits.
    fn number(&mut self) -> u64 {
        if self.rng.u8(0..6) == 0 { NEAR[self.rng.usize(..NEAR.len())] } else { self.rng.u64(0..4) }
    }

    fn wide_number(&mut self) -> u64 {
        if self.rng.bool() { WIDE[self.rng.usize(..WIDE.len())] } else { self.rng.u64(0..3) }
    }

    /// A field that is known here and of which so much is known.
    fn field(&mut self, fields: &[&str]) -> Option<String> {
        let known: Vec<String> = self
            .reads
            .iter()
            .flat_map(|(name, fields)| fields.iter().map(move |(field, _)| (name, *field)))
            .filter(|(_, field)| fields.contains(field))
            .map(|(name, field)| format!("{name}.{field}"))
            .collect();
        (!known.is_empty()).then(|| known[self.rng.usize(..known.len())].clone())
    }

    /// A value of at most 48 bits.
    fn value(&mut self) -> String {
        match self.rng.u8(0..8) {
            0..2 => self.number().to_string(),
            2 => self.field(&["k", "n", "s"]).unwrap_or_else(|| "s".to_owned()),
            _ => self.pick(&["a", "b", "c", "x", "y", "s"]).to_owned(),
        }
    }

    /// A value of 64 bits.
    fn wide_value(&mut self) -> String {
        match self.rng.u8(0..5) {
            0 => self.wide_number().to_string(),
            1 => self.field(&["h", "v"]).unwrap_or_else(|| "z".to_owned()),
            2 => self.value(),
            _ => self.pick(&["w", "z"]).to_owned(),
        }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    fn block(&mut self, scope: Scope) {
        let known = self.reads.len();
        if !scope.ring && scope.depth > 0 && self.rng.u8(0..4) == 0 {
            self.apart();
        }
        for _ in 0..self.rng.usize(1..4) {
            match self.rng.u8(0..if scope.depth > 0 { 20 } else { 12 }) {
                0..6 => self.simple(scope),
                6..8 => self.reading(),
                8..10 => self.one(scope),
                10..12 if !scope.ring => self.reply(),
                10..12 => self.simple(scope),
                12..15 => self.conditional(scope),
                15..17 => self.unrolled(scope),
                _ if scope.ring => self.simple(scope),
                _ => self.recycled(scope),
            }
        }
        self.reads.truncate(known);
    }

    fn condition(&mut self) -> String {
        let compare = self.pick(&["==", "==", "!=", "!=", "<", "<=", ">", ">="]);
        if self.rng.u8(0..4) == 0 {
            let (left, right) = (self.pick(&["w", "z", "a", "x"]), self.wide_value());
            return format!("wide {left} {compare} {right}");
        }
        let (mut left, mut right) = (self.pick(&["a", "b", "c", "x"]).to_owned(), self.value());
        if self.rng.bool() {
            core::mem::swap(&mut left, &mut right);
        }
        format!("{left} {compare} {right}")
    }

    /// Where `mov` finds or puts a word: at an address, or at the sum of two values.
    fn place(&mut self) -> String {
        let word = 8 * self.rng.u64(0..WORDS / 2);
        match self.rng.u8(0..7) {
            0 => "p".to_owned(),
            1 => format!("&words+{word}"),
            2 => format!("&words+{word} + q"),
            3..5 => "p + q".to_owned(),
            5 => self.field(&["ptr"]).unwrap_or_else(|| "p".to_owned()),
            _ => format!("p + {word}"),
        }
    }

    /// A statement that is one WR.
    fn simple(&mut self, scope: Scope) {
        let to = self.pick(&["a", "b", "c"]);
        let value = self.value();
        let word = 8 * self.rng.u64(0..WORDS / 2);
        let line = match self.rng.u8(0..13) {
            0 => format!("mov {to}, {}", self.number()),
            1 => format!("mov {to}, {value}"),
            2 => format!("{to} += {}", self.rng.u64(0..4)),
            3 => format!("{to} += {value}"),
            4..6 => format!("mov {to}, [{}]", self.place()),
            6..8 => format!("mov [{}], {value}", self.place()),
            8 => format!("mov p, &words+{}", word / 2),
            9 => format!("mov q, {}", word / 2 / 8 * 8),
            12 => {
                let pairs: Vec<String> = (0..self.rng.usize(1..8))
                    .map(|_| format!("{}: {}", self.wide_value(), self.value()))
                    .collect();
                format!("{to} = pick {} {{ {} }}", self.wide_value(), pairs.join(", "))
            }
            10 if scope.depth == 0 => format!("mov node, &table+{}", STRIDE * self.rng.u64(0..ENTRIES)),
            10 => format!("mov w, {}", self.wide_value()),
            _ if scope.depth > 2 => format!("w += {}", self.wide_number()),
            _ => format!("{to} = {value}"),
        };
        self.line(&line);
    }

    /// Statements that do not need each other, as long as they do not meet in memory; and then one that needs
    /// them all.
    fn apart(&mut self) {
        let own: Vec<String> = (0..self.rng.usize(2..6)).map(|_| self.name("v")).collect();
        for name in &own {
            self.line(&format!("var {name}: u48"));
        }
        for name in &own {
            self.part(name);
        }
        let to = self.pick(&["a", "b", "c"]);
        for name in &own {
            self.line(&format!("{to} += {name}"));
        }
    }

    /// One of them, which changes this variable.
    fn part(&mut self, own: &str) {
        let (number, small, argument) =
            (self.number(), self.rng.u64(0..4), self.pick(&["x", "y", "s"]).to_owned());
        let compare = self.pick(&["==", "!=", "<", ">="]);
        match self.rng.u8(0..9) {
            0 => self.line(&format!(
                "if {argument} {compare} {number} {{\nmov {own}, {small}\n}} else {{\n{own} = {argument}\n}}"
            )),
            1 => self.line(&format!(
                "while {own} != {small} unroll 3 {{\n{own} += 1\nif {own} == 2 {{\nbreak\n}}\n}}"
            )),
            2 => self.line(&format!(
                "mov {own}, 0\nloop recycle {{\nif {own} == {small} {{\nbreak\n}}\n{own} += 1\n}}"
            )),
            3 => {
                let (name, entry) = (self.name("t"), STRIDE * self.rng.u64(0..ENTRIES));
                self.line(&format!("let {name} = read table[&table+{entry}] {{ {} }}", list(&FIRST)));
                self.line(&format!("if {name}.k {compare} {argument} {{\nmov {own}, {name}.n\n}}"));
                self.reads.push((name, &FIRST));
            }
            4..6 => {
                self.line(&format!("if {argument} {compare} {number} {{\n{own} += {small}"));
                self.reply();
                self.line("}");
            }
            6 => self.line(&format!("{own} = pick z {{ 0: {small}, {number}: {argument} }}")),
            7 => self.line(&format!("mov {own}, [p + q]\n{own} += {argument}")),
            _ => self.line(&format!(
                "if {argument} {compare} {small} {{\nif wide z {compare} {number} {{\n{own} += 1\n}}\n}}\n\
                 mov [p + 8], {own}"
            )),
        }
    }

    /// What is known by its place, by an argument, or by what was read before.
    fn reading(&mut self) {
        let entry = STRIDE * self.rng.u64(0..ENTRIES);
        let (at, fields) = match self.rng.u8(0..4) {
            0 => ("node".to_owned(), &FIRST[..self.rng.usize(1..=FIRST.len())]),
            1 => (format!("&table+{}", entry + BEHIND), &SECOND[..self.rng.usize(1..=SECOND.len())]),
            _ => (format!("&table+{entry}"), &FIRST[..self.rng.usize(1..=FIRST.len())]),
        };
        let name = self.name("t");
        self.line(&format!("let {name} = read table[{at}] {{ {} }}", list(fields)));
        self.reads.push((name.clone(), fields));
        if self.rng.bool() && fields[0].0 == "k" {
            let to = self.pick(&["a", "b"]);
            self.line(&format!("{to} = {name}.k"));
        }
    }

    /// A conditional whose body is one WR.
    fn one(&mut self, scope: Scope) {
        let condition = self.condition();
        self.line(&format!("if {condition} {{"));
        if !scope.ring && self.rng.u8(0..4) == 0 {
            self.reply()
        } else {
            self.simple(scope)
        }
        self.line("}");
    }

    fn conditional(&mut self, scope: Scope) {
        let within = Scope { depth: scope.depth - 1, ..scope };
        let condition = self.condition();
        self.line(&format!("if {condition} {{"));
        self.block(within);
        if scope.loops && self.rng.bool() {
            self.line("break");
        }
        match self.rng.u8(0..6) {
            0..3 => {
                self.line("} else {");
                self.block(within);
            }
            3 => {
                let condition = self.condition();
                self.line(&format!("}} else if {condition} {{"));
                self.block(within);
            }
            _ => {}
        }
        self.line("}");
    }

    fn unrolled(&mut self, scope: Scope) {
        let within = Scope { depth: scope.depth - 1, loops: true, ..scope };
        let times = self.rng.u64(1..4);
        self.rounds *= times;
        match self.rng.u8(0..5) {
            0..3 => {
                self.line(&format!("loop unroll {times} {{"));
                self.block(within);
                if self.rng.bool() {
                    self.line("break");
                }
            }
            3 => {
                let condition = self.condition();
                self.line(&format!("while {condition} unroll {times} {{"));
                self.block(within);
            }
            // A walk along the table.
            _ => {
                let (at, name) = (self.name("at"), self.name("t"));
                self.line(&format!("var {at}: addr\nmov {at}, node\nwhile {at} != 0 unroll {times} {{"));
                self.line(&format!("let {name} = read table[{at}] {{ {} }}", list(&FIRST)));
                self.reads.push((name.clone(), &FIRST));
                self.block(within);
                self.reads.pop();
                self.line(&format!("{at} = {name}.next"));
            }
        }
        self.rounds /= times;
        self.line("}");
    }

    fn recycled(&mut self, scope: Scope) {
        let within = Scope { depth: scope.depth - 1, loops: true, ring: true };
        let (n, laps) = (self.name("n"), self.rng.u8(0..5));
        self.line(&format!("var {n}: u48"));
        // A variable is 0 at first.
        if self.rounds > 1 || self.rng.bool() {
            self.line(&format!("mov {n}, 0"));
        }
        if self.rng.bool() {
            self.line(&format!("while {n} != {laps} recycle {{\n{n} += 1"));
            self.block(within);
        } else {
            self.line(&format!("loop recycle {{\nif {n} == {laps} {{\nbreak\n}}\n{n} += 1"));
            self.block(within);
        }
        self.line("}");
    }

    fn reply(&mut self) {
        if self.replies + self.rounds > REPLIES_MAX {
            let value = self.value();
            return self.line(&format!("b += {value}"));
        }
        self.replies += self.rounds;
        let (at, len) = (self.rng.u64(0..48), self.rng.u64(0..16));
        let carries = match self.rng.u8(0..6) {
            0 => String::new(),
            1 => self.pick(&["a", "w", "x", "z"]).to_owned(),
            2 => format!("values[&values+{at}; {len}]"),
            3 if len == 0 => format!("words[&words; {}]", 8 * WORDS),
            3 => format!("words[&words+{}; 8]", at / 8 * 8),
            _ => match self
                .reads
                .iter()
                .rev()
                .find(|(_, fields)| fields.len() > 2 && fields[..3] == SECOND[..3])
            {
                Some((name, _)) => format!("values[{name}.at; {name}.n]"),
                None => format!("values[&values+{at}; {len}]"),
            },
        };
        let imm = match self.rng.u8(0..4) {
            0 if !carries.is_empty() => String::new(),
            _ => format!(" imm {}", 100 + self.rng.u32(0..1000)),
        };
        let line = format!("reply {carries}{imm}");
        self.line(&line);
    }
}

/// Fields as `read` takes them.
fn list(fields: &[Field]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
    fields.join(", ")
}
