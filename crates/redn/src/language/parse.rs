//! Reads a program: words and signs, then statements, by recursive descent.

use super::Error;
use super::ast::*;

/// Nesting of blocks at most, so that no text takes the whole stack.
const DEPTH_MAX: u32 = 64;

/// Words that no variable may have as its name.
const KEYWORDS: [&str; 21] = [
    "program", "region", "data", "run", "let", "read", "var", "if", "else", "while", "loop", "unroll",
    "recycle", "break", "mov", "reply", "imm", "wide", "source", "memory", "pick",
];

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Word(String),
    Number(u64),
    Text(Vec<u8>),
    Sign(&'static str),
}

/// Longer signs first.
const SIGNS: [&str; 20] =
    ["==", "!=", "<=", ">=", "+=", "{", "}", "(", ")", "[", "]", ",", ":", ";", "=", "<", ">", "+", ".", "&"];

fn tokens(text: &str) -> Result<Vec<(Token, u32)>, Error> {
    let mut out = Vec::new();
    for (line, text) in (1u32..).zip(text.lines()) {
        let mut rest = text.trim_start();
        while !rest.is_empty() && !rest.starts_with('#') {
            let first = rest.chars().next().unwrap_or(' ');
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if word(first) {
                let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                let (taken, after) = rest.split_at(end);
                out.push((word_or_number(taken, line)?, line));
                rest = after;
            } else if first == '"' {
                let Some(end) = rest[1..].find('"') else {
                    return Err(Error::new(line, "text ends with a quotation mark on the same line"));
                };
                out.push((Token::Text(rest.as_bytes()[1..=end].to_vec()), line));
                rest = &rest[end + 2..];
            } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                out.push((Token::Sign(sign), line));
                rest = &rest[sign.len()..];
            } else {
                return Err(Error::new(line, format!("`{first}` is no sign of the language")));
            }
            rest = rest.trim_start();
        }
    }
    Ok(out)
}

fn word_or_number(text: &str, line: u32) -> Result<Token, Error> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Token::Word(text.to_owned()));
    }
    let digits = text.replace('_', "");
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let number = number.map_err(|_| Error::new(line, format!("`{text}` is no number of 64 bits")))?;
    Ok(Token::Number(number))
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: u32,
}

/// A file's program, data and arguments.
pub fn parse(text: &str) -> Result<File, Error> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let (mut program, mut data, mut run) = (None, Vec::new(), Vec::new());
    while parser.at < parser.tokens.len() {
        let line = parser.line();
        if parser.takes("program") {
            if program.replace(parser.program(line)?).is_some() {
                return Err(Error::new(line, "a file has one program"));
            }
        } else if parser.takes("data") {
            data.push(parser.data(line)?);
        } else if parser.takes("run") {
            loop {
                let name = parser.name("an argument")?;
                parser.sign("=")?;
                let value = parser.atom()?;
                run.push((name, value));
                if !parser.signs(",") {
                    break;
                }
            }
        } else {
            return Err(parser.expected("`program`, `data` or `run`"));
        }
    }
    let program = program.ok_or_else(|| Error::new(1, "there is no `program` in the file"))?;
    Ok(File { program, data, run })
}

impl Parser {
    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn expected(&self, what: &str) -> Error {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Word(word)) => format!("`{word}`"),
            Some(Token::Number(number)) => format!("`{number}`"),
            Some(Token::Text(_)) => "text".to_owned(),
            Some(Token::Sign(sign)) => format!("`{sign}`"),
        };
        Error::new(self.line(), format!("{what} is expected, not {found}"))
    }

    fn takes(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(other)) if other == word);
        self.at += usize::from(found);
        found
    }

    fn signs(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(other)) if *other == sign);
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: &str) -> Result<(), Error> {
        if self.signs(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    fn name(&mut self, what: &str) -> Result<String, Error> {
        match self.peek() {
            Some(Token::Word(word)) if !KEYWORDS.contains(&word.as_str()) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.expected(&format!("the name of {what}"))),
        }
    }

    fn number(&mut self, what: &str) -> Result<u64, Error> {
        match self.peek() {
            Some(Token::Number(number)) => {
                let number = *number;
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn ty(&mut self) -> Result<Type, Error> {
        let ty = match self.peek() {
            Some(Token::Word(word)) => type_of(word),
            _ => None,
        };
        let ty = ty.ok_or_else(|| self.expected("a type (u16, u32, u48, u64, addr or word)"))?;
        self.at += 1;
        Ok(ty)
    }

    fn program(&mut self, line: u32) -> Result<Program, Error> {
        let name = self.name("the program")?;
        let mut params = Vec::new();
        self.sign("(")?;
        while !self.signs(")") {
            let line = self.line();
            let name = self.name("an argument")?;
            self.sign(":")?;
            params.push(Param { name, ty: self.ty()?, line });
            if !self.signs(",") {
                self.sign(")")?;
                break;
            }
        }
        let unordered = self.takes("unordered");
        self.sign("{")?;
        let mut regions = Vec::new();
        loop {
            let line = self.line();
            if !self.takes("region") {
                break;
            }
            let name = self.name("a region")?;
            self.sign(":")?;
            let right = match () {
                () if self.takes("read") => Right::Read,
                () if self.takes("source") => Right::Source,
                () if self.takes("memory") => Right::Memory,
                () => return Err(self.expected("`read`, `source` or `memory`")),
            };
            regions.push(Region { name, right, line });
            self.signs(";");
        }
        Ok(Program { name, params, regions, body: self.rest_of_block()?, unordered, line })
    }

    fn block(&mut self) -> Result<Vec<Statement>, Error> {
        self.sign("{")?;
        self.rest_of_block()
    }

    fn rest_of_block(&mut self) -> Result<Vec<Statement>, Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Error::new(self.line(), format!("blocks are nested at most {DEPTH_MAX} deep")));
        }
        let mut out = Vec::new();
        while !self.signs("}") {
            let line = self.line();
            let kind = self.statement()?;
            out.push(Statement { line, kind });
            self.signs(";");
        }
        self.depth -= 1;
        Ok(out)
    }

    fn statement(&mut self) -> Result<Kind, Error> {
        if self.takes("let") {
            return self.reading();
        }
        if self.takes("var") {
            let name = self.name("a variable")?;
            self.sign(":")?;
            return Ok(Kind::Var(name, self.ty()?));
        }
        if self.takes("if") {
            return self.conditional();
        }
        if self.takes("while") {
            let condition = self.condition()?;
            return self.repeated(Some(condition));
        }
        if self.takes("loop") {
            return self.repeated(None);
        }
        if self.takes("break") {
            return Ok(Kind::Break);
        }
        if self.takes("mov") {
            return self.mov();
        }
        if self.takes("reply") {
            return self.reply();
        }
        let name = self.name("a variable, or a statement,")?;
        if self.signs("+=") {
            return Ok(Kind::Add(name, self.atom()?));
        }
        self.sign("=")?;
        if self.takes("pick") {
            return self.pick(name);
        }
        Ok(Kind::Set(name, self.atom()?))
    }

    fn pick(&mut self, name: String) -> Result<Kind, Error> {
        let key = self.atom()?;
        self.sign("{")?;
        let mut pairs = Vec::new();
        while !self.signs("}") {
            let other = self.atom()?;
            self.sign(":")?;
            pairs.push((other, self.atom()?));
            if !self.signs(",") {
                self.sign("}")?;
                break;
            }
        }
        Ok(Kind::Pick(name, key, pairs))
    }

    fn reading(&mut self) -> Result<Kind, Error> {
        let name = self.name("what is read")?;
        self.sign("=")?;
        if !self.takes("read") {
            return Err(self.expected("`read`"));
        }
        let region = self.name("a region")?;
        self.sign("[")?;
        let at = self.atom()?;
        self.sign("]")?;
        self.sign("{")?;
        let mut fields = Vec::new();
        while !self.signs("}") {
            let name = self.name("a field")?;
            self.sign(":")?;
            fields.push((name, self.ty()?));
            if !self.signs(",") {
                self.sign("}")?;
                break;
            }
        }
        Ok(Kind::Let(name, region, at, fields))
    }

    fn conditional(&mut self) -> Result<Kind, Error> {
        let condition = self.condition()?;
        let then = self.block()?;
        let otherwise = match self.takes("else") {
            false => Vec::new(),
            true if self.takes("if") => {
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Err(self.expected(&format!("at most {DEPTH_MAX} nested blocks")));
                }
                let line = self.line();
                let kind = self.conditional()?;
                self.depth -= 1;
                vec![Statement { line, kind }]
            }
            true => self.block()?,
        };
        Ok(Kind::If(condition, then, otherwise))
    }

    fn condition(&mut self) -> Result<Condition, Error> {
        let wide = self.takes("wide");
        let left = self.atom()?;
        let compare = match () {
            () if self.signs("==") => Compare::Equal,
            () if self.signs("!=") => Compare::NotEqual,
            () if self.signs("<=") => Compare::LessEqual,
            () if self.signs("<") => Compare::Less,
            () if self.signs(">=") => Compare::GreaterEqual,
            () if self.signs(">") => Compare::Greater,
            () => return Err(self.expected("a comparison")),
        };
        Ok(Condition { wide, left, compare, right: self.atom()? })
    }

    fn repeated(&mut self, condition: Option<Condition>) -> Result<Kind, Error> {
        let times = match () {
            () if self.takes("recycle") => Times::Recycle,
            () if self.takes("unroll") => {
                let line = self.line();
                let times = self.number("the number of rounds")?;
                let times = u32::try_from(times).ok().filter(|times| (1..=4096).contains(times));
                Times::Unroll(times.ok_or_else(|| Error::new(line, "a loop is unrolled 1 to 4096 times"))?)
            }
            () => return Err(self.expected("`unroll` and a number, or `recycle`")),
        };
        Ok(Kind::Loop(condition, times, self.block()?))
    }

    /// `[VALUE]` or `[VALUE + VALUE]`, behind its bracket.
    fn indirect(&mut self) -> Result<(Atom, Option<Atom>), Error> {
        let base = self.atom()?;
        let offset = if self.signs("+") { Some(self.atom()?) } else { None };
        self.sign("]")?;
        Ok((base, offset))
    }

    fn mov(&mut self) -> Result<Kind, Error> {
        if self.signs("[") {
            let (base, offset) = self.indirect()?;
            self.sign(",")?;
            return Ok(Kind::Store(base, offset, self.atom()?));
        }
        let name = self.name("a variable")?;
        self.sign(",")?;
        if self.signs("[") {
            let (base, offset) = self.indirect()?;
            return Ok(Kind::Load(name, base, offset));
        }
        Ok(Kind::Set(name, self.atom()?))
    }

    fn reply(&mut self) -> Result<Kind, Error> {
        let carries = if matches!(self.peek(), Some(Token::Word(word)) if word == "imm") {
            Carries::Nothing
        } else {
            match self.atom()? {
                Atom::Name(region) if self.signs("[") => {
                    let at = self.atom()?;
                    self.sign(";")?;
                    let len = self.atom()?;
                    self.sign("]")?;
                    Carries::Piece(region, at, len)
                }
                value => Carries::Value(value),
            }
        };
        if !self.takes("imm") {
            return Ok(Kind::Reply(carries, None));
        }
        let line = self.line();
        let number = self.number("an immediate")?;
        let number = u32::try_from(number).map_err(|_| Error::new(line, "an immediate has 32 bits"))?;
        Ok(Kind::Reply(carries, Some(number)))
    }

    fn atom(&mut self) -> Result<Atom, Error> {
        if let Some(Token::Number(number)) = self.peek() {
            let number = *number;
            self.at += 1;
            return Ok(Atom::Number(number));
        }
        if self.signs("&") {
            let region = self.name("a region")?;
            let at = if self.signs("+") { self.number("an offset")? } else { 0 };
            return Ok(Atom::Address(region, at));
        }
        let name = self.name("a value")?;
        if !self.signs(".") {
            return Ok(Atom::Name(name));
        }
        Ok(Atom::Field(name, self.name("a field")?))
    }

    fn data(&mut self, line: u32) -> Result<Data, Error> {
        let name = self.name("a region")?;
        let len = self.number("its length")?;
        if !(1..=1 << 30).contains(&len) {
            return Err(Error::new(line, "a region has 1 to 2^30 bytes"));
        }
        self.sign("{")?;
        let mut items = Vec::new();
        while !self.signs("}") {
            let line = self.line();
            let mut at = self.number("an offset")?;
            self.sign(":")?;
            loop {
                let (item, bytes) = self.item()?;
                if at.checked_add(bytes).is_none_or(|end| end > len) {
                    return Err(Error::new(line, format!("{bytes} bytes at {at} of a region of {len}")));
                }
                items.push((at, item));
                at += bytes;
                if !self.signs(",") {
                    break;
                }
            }
            self.signs(";");
        }
        Ok(Data { name, len, items, line })
    }

    fn item(&mut self) -> Result<(Item, u64), Error> {
        if let Some(Token::Text(text)) = self.peek() {
            let text = text.clone();
            self.at += 1;
            let len = text.len() as u64;
            return Ok((Item::Text(text), len));
        }
        if self.takes("word") {
            return Ok((Item::Word(self.atom()?), 8));
        }
        let ty = self.ty()?;
        Ok((Item::Field(ty, self.atom()?), ty.bytes().into()))
    }
}

fn type_of(word: &str) -> Option<Type> {
    Some(match word {
        "u16" => Type::U16,
        "u32" => Type::U32,
        "u48" => Type::U48,
        "u64" => Type::U64,
        "addr" => Type::Addr,
        "word" => Type::Word,
        _ => return None,
    })
}
