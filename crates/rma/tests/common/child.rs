//! Children of a test: its program again, told by their environment which part to play. They are heard by
//! lines that begin in a way of their own, among those that the harness writes.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process with a part, ended with its test.
pub struct Part {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Part {
    /// Has the test `role` of this program played by a process, which finds what to do in a variable.
    pub fn play(role: &str, variable: &str, part: &str) -> Part {
        Part::play_by(Command::new(std::env::current_exe().unwrap()), role, variable, part)
    }

    /// The same by a command that starts this program.
    pub fn play_by(mut command: Command, role: &str, variable: &str, part: &str) -> Part {
        let mut child = command
            .args(["--exact", role, "--nocapture"])
            .env(variable, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Part { child, input, output: BufReader::new(output) }
    }

    /// What the next line says that begins so.
    pub fn hear(&mut self, begins: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the child ended without saying {begins}");
            if let Some(rest) = line.trim_end_matches('\n').strip_prefix(begins) {
                return rest.to_owned();
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
