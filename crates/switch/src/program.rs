//! What a program is: something that sees each frame once it is known where it goes, and says what leaves.

use crate::budget::Needs;
use crate::cas_to_write::{CasConfig, CasToWrite};
use crate::counters::{Counter, Counters, Drop};
use crate::frame::Frame;
use crate::mark::{Mark, MarkConfig};
use crate::own::{Own, OwnConfig};
use crate::paper::{Paper, PaperConfig};
use crate::register::{Pass, Passes, digest};
use crate::steer::paper::PaperSteer;
use crate::steer::{Steer, SteerConfig};
use crate::switch::Announcement;
use crate::trace::{Note, Trace};
use adverb_wire::{Gid, Instant, Packet};

/// A port's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u16);

impl PortId {
    /// Where nobody is. What goes there is dropped behind the programs.
    pub(crate) const NONE: PortId = PortId(u16::MAX);
}

/// A frame on its way through the row of programs: the port on which it came, the port that has its
/// destination, and the frame, which stays in one place.
pub(crate) type Hop = (PortId, PortId, Box<Frame>);

/// What a program may use while it deals with a frame.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time.
    pub now: Instant,
    /// The port on which the frame came.
    pub from: PortId,
    /// The port that has its destination.
    pub to: PortId,
    /// Bytes that wait at that port, as the driver said last.
    pub depth: u32,
    /// The frame's way through the pipeline.
    pub pass: Pass,
    pub(crate) passes: &'a mut Passes,
    pub(crate) counters: &'a mut Counters,
    pub(crate) trace: &'a mut Trace,
    pub(crate) out: &'a mut Vec<Hop>,
}

impl Context<'_> {
    /// Lets the frame go on to the port that has its destination.
    #[inline]
    pub fn pass_on(&mut self, frame: Box<Frame>) {
        self.out.push((self.from, self.to, frame));
    }

    /// Sends a frame back to the port on which this one came.
    pub fn send_back(&mut self, frame: Box<Frame>) {
        self.out.push((self.to, self.from, frame));
    }

    /// Another way through the pipeline, for a packet that the program made or had kept.
    pub fn again(&mut self) -> Pass {
        self.pass = self.passes.again();
        self.pass
    }

    /// Counts.
    pub fn count(&mut self, counter: Counter) {
        self.counters.add(counter);
    }

    /// Says what became of a packet.
    #[inline]
    pub fn note(&mut self, packet: &Packet, note: Note) {
        self.trace.add(self.now, (self.from, self.to), packet, note);
    }

    /// Counts a frame that goes no further, and says why.
    pub fn drop(&mut self, packet: &Packet, reason: Drop) {
        self.counters.drop(reason);
        self.note(packet, Note::Dropped(reason));
    }
}

/// What a program is told: enough to begin it, and to begin it anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramConfig {
    /// When packets are marked.
    Ecn(MarkConfig),
    /// When payloads are cut off.
    Trim(MarkConfig),
    /// Whose atomics are decided, and how.
    CasToWrite(CasConfig),
    /// The same as the draft has it.
    Paper(PaperConfig),
    /// Whose chains' ends requests are steered to.
    Steer(SteerConfig),
    /// The same as the draft has it.
    PaperSteer(SteerConfig),
    /// A program of somebody else.
    Own(OwnConfig),
}

impl ProgramConfig {
    /// The program, which begins now and remembers nothing.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn begin(&self, now: Instant) -> Result<Program, &'static str> {
        Ok(match self {
            ProgramConfig::Ecn(config) => Program::Ecn(Mark::new(*config)),
            ProgramConfig::Trim(config) => Program::Trim(Mark::new(*config)),
            ProgramConfig::CasToWrite(config) => {
                Program::CasToWrite(Box::new(CasToWrite::new(*config, now)?))
            }
            ProgramConfig::Paper(config) => Program::Paper(Box::new(Paper::new(*config)?)),
            ProgramConfig::Steer(config) => Program::Steer(Box::new(Steer::new(*config, now)?)),
            ProgramConfig::PaperSteer(config) => Program::PaperSteer(Box::new(PaperSteer::new(*config)?)),
            ProgramConfig::Own(config) => Program::Own(config.name(), config.begin(now)?),
        })
    }

    /// Whether a program that was told this goes on, with all that it remembers, when it is told `next`.
    pub fn may_become(&self, next: &ProgramConfig) -> bool {
        match (self, next) {
            // What they count by port is the same whatever they are to do at which count.
            (ProgramConfig::Ecn(_), ProgramConfig::Ecn(_))
            | (ProgramConfig::Trim(_), ProgramConfig::Trim(_)) => true,
            (ProgramConfig::CasToWrite(config), ProgramConfig::CasToWrite(next)) => config.may_become(next),
            (ProgramConfig::Steer(config), ProgramConfig::Steer(next)) => config.may_become(next),
            _ => false,
        }
    }

    /// What is wrong with what a program that runs is to be told.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            ProgramConfig::CasToWrite(config) => config.check(),
            ProgramConfig::Steer(config) => config.check(),
            _ => Ok(()),
        }
    }

    /// The program's name.
    pub fn name(&self) -> &'static str {
        match self {
            ProgramConfig::Ecn(_) => "ecn",
            ProgramConfig::Trim(_) => "trim",
            ProgramConfig::CasToWrite(_) | ProgramConfig::Paper(_) => "cas_to_write",
            ProgramConfig::Steer(_) | ProgramConfig::PaperSteer(_) => "steer",
            ProgramConfig::Own(config) => config.name(),
        }
    }

    /// Its server, if it is for one.
    pub fn server(&self) -> Option<Gid> {
        match self {
            ProgramConfig::Ecn(_) | ProgramConfig::Trim(_) | ProgramConfig::Own(_) => None,
            ProgramConfig::CasToWrite(config) => Some(config.server),
            ProgramConfig::Paper(config) => Some(config.cas.server),
            ProgramConfig::Steer(config) | ProgramConfig::PaperSteer(config) => Some(config.server),
        }
    }
}

/// The programs that there are. `forward` is none: it is what the switch does without one.
#[derive(Debug)]
pub enum Program {
    /// Marks packets where many wait, or every so many-th.
    Ecn(Mark),
    /// Cuts off payloads where many packets wait, or every so many-th.
    Trim(Mark),
    /// Decides atomics, and sends them on as WRITEs.
    CasToWrite(Box<CasToWrite>),
    /// The same as the draft has it: in simulations only.
    Paper(Box<Paper>),
    /// Sends requests for chains of entries to the last one.
    Steer(Box<Steer>),
    /// The same as the draft has it: in simulations only.
    PaperSteer(Box<PaperSteer>),
    /// Somebody else's, and its name.
    Own(&'static str, Box<dyn Own>),
}

impl Program {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Program::Ecn(_) => "ecn",
            Program::Trim(_) => "trim",
            Program::CasToWrite(_) | Program::Paper(_) => "cas_to_write",
            Program::Steer(_) | Program::PaperSteer(_) => "steer",
            Program::Own(name, _) => name,
        }
    }

    /// Whose words or chains it knows. One program knows those of a server.
    pub fn server(&self) -> Option<Gid> {
        match self {
            Program::CasToWrite(program) => Some(program.config().server),
            Program::Paper(paper) => Some(paper.config().cas.server),
            Program::Steer(program) => Some(program.config().server),
            Program::PaperSteer(paper) => Some(paper.config().server),
            Program::Ecn(_) | Program::Trim(_) | Program::Own(..) => None,
        }
    }

    /// Whose atomics it decides.
    pub fn decides_for(&self) -> Option<Gid> {
        self.server().filter(|_| matches!(self, Program::CasToWrite(_) | Program::Paper(_)))
    }

    /// Whether an answer is awaited that tells of a word, or of a chain's end.
    pub fn awaits(&self) -> bool {
        match self {
            Program::CasToWrite(program) => {
                let counts = program.count_words();
                counts.pending + counts.learning > 0
            }
            Program::Paper(paper) => paper.awaits(),
            Program::Steer(program) => program.count_chains().pending > 0,
            Program::Own(_, own) => own.awaits(),
            // It waits for no answer, and keeps nothing that one could change.
            Program::Ecn(_) | Program::Trim(_) | Program::PaperSteer(_) => false,
        }
    }

    /// Whether it can be taken out of a switch that goes on; `is_replaced`, if another one then decides for
    /// its server.
    pub(crate) fn may_go(&self, is_replaced: bool) -> Result<(), &'static str> {
        let Program::CasToWrite(cas) = self else { return Ok(()) };
        if !cas.shifted().is_empty() {
            // Nobody else could map them, and their clients would not know.
            return Err("it carries queue pairs whose numbers are shifted; end the programs that have them");
        }
        if !is_replaced && (self.awaits() || cas.held() > 0) {
            // An acknowledgement that nobody makes an answer of would complete an atomic without its value.
            return Err(
                "atomics are under way that it has to answer; try again when their clients are quiet",
            );
        }
        Ok(())
    }

    /// It is told something else, and goes on.
    ///
    /// # Panics
    /// If it may not become that.
    pub(crate) fn is_told(&mut self, next: &ProgramConfig) {
        match (self, next) {
            (Program::Ecn(mark), ProgramConfig::Ecn(next)) => mark.set_config(*next),
            (Program::Trim(mark), ProgramConfig::Trim(next)) => mark.set_config(*next),
            (Program::CasToWrite(program), ProgramConfig::CasToWrite(next)) => program.is_told(*next),
            (Program::Steer(program), ProgramConfig::Steer(next)) => program.is_told(*next),
            (program, _) => panic!("{} does not become {next:?}", program.name()),
        }
    }

    /// Deals with one frame: passes it on, changed or not, drops it, or keeps it.
    pub fn on_frame(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        match self {
            Program::Ecn(mark) => mark.ecn(ctx, frame),
            Program::Trim(mark) => mark.trim(ctx, frame),
            Program::CasToWrite(program) => program.on_frame(ctx, frame),
            Program::Paper(paper) => paper.on_frame(ctx, frame),
            Program::Steer(program) => program.on_frame(ctx, frame),
            Program::PaperSteer(paper) => paper.on_frame(ctx, frame),
            Program::Own(_, own) => own.on_frame(ctx, frame),
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, ctx: &mut Context<'_>) {
        match self {
            Program::Ecn(_) | Program::Trim(_) | Program::Paper(_) | Program::PaperSteer(_) => {}
            Program::CasToWrite(program) => program.on_timer(ctx),
            Program::Steer(program) => program.on_timer(ctx),
            Program::Own(_, own) => own.on_timer(ctx),
        }
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Program::Ecn(_) | Program::Trim(_) | Program::Paper(_) | Program::PaperSteer(_) => None,
            Program::CasToWrite(program) => program.next_deadline(),
            Program::Steer(program) => program.next_deadline(),
            Program::Own(_, own) => own.next_deadline(),
        }
    }

    /// A connection's ends, told by one of them.
    pub fn announce(&mut self, ctx: &mut Context<'_>, announcement: &Announcement) {
        if let Program::CasToWrite(program) = self {
            program.announce(ctx, announcement);
        }
    }

    /// An address has left its port.
    pub fn on_gone(&mut self, ctx: &mut Context<'_>, address: Gid) {
        match self {
            Program::CasToWrite(program) => program.on_gone(ctx, address),
            Program::Steer(program) => program.on_gone(ctx, address),
            Program::Own(_, own) => own.on_gone(ctx, address),
            Program::Ecn(_) | Program::Trim(_) | Program::Paper(_) | Program::PaperSteer(_) => {}
        }
    }

    /// What it needs of hardware.
    pub fn needs(&self, needs: &mut Needs) {
        match self {
            Program::Ecn(mark) | Program::Trim(mark) => needs.registers.push(mark.shape()),
            Program::CasToWrite(program) => program.needs(needs),
            Program::Steer(program) => program.needs(needs),
            // Its hardware is the draft's matter: the switch's process does not run it.
            Program::Paper(_) | Program::PaperSteer(_) => {}
            Program::Own(_, own) => own.needs(needs),
        }
    }

    /// Digests of what it remembers, by name.
    pub fn digests(&self) -> Vec<(&'static str, u64)> {
        match self {
            Program::Ecn(mark) | Program::Trim(mark) => mark.digests(),
            Program::CasToWrite(program) => program.digests(),
            Program::Paper(paper) => vec![("paper", digest(paper))],
            Program::PaperSteer(paper) => vec![("paper", digest(paper))],
            Program::Steer(program) => program.digests(),
            Program::Own(_, own) => own.digests(),
        }
    }

    /// Asserts what must hold between two frames.
    pub fn check_invariants(&self) {
        match self {
            Program::CasToWrite(program) => program.check_invariants(),
            Program::Steer(program) => program.check_invariants(),
            Program::Own(_, own) => own.check_invariants(),
            Program::Ecn(_) | Program::Trim(_) | Program::Paper(_) | Program::PaperSteer(_) => {}
        }
    }
}
