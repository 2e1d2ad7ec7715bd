//! Parts that children of the test play, and how they are asked.
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::child::Part;
use crate::raw::{self, Raw};
use crate::{LEN, PART, common::*};
use adverb_rma::nicd::{Nicd, NicdQuota, NicdSettings, NicdShare};
use adverb_rma::{Grant, Rights, Rma, Settings};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

pub fn daemon(address: &str, folder: &str, slots: u32, mode: u32) {
    let folder = PathBuf::from(folder);
    let nic = Settings { state: Some(folder.clone()), ..Settings::new(address.parse().unwrap()) };
    let nic = patient(nic);
    let quota = NicdQuota { slots, priority: 0, regions: 32 };
    let socket = folder.join(format!("{address}.socket"));
    let share = NicdShare::of(&nic.nic, mode);
    let settings = NicdSettings { nic, socket, mode, quota, quota_by_user: Vec::new(), share };
    let mut nicd = Nicd::open(settings).unwrap();
    println!("\nready");
    nicd.serve();
}

/// Takes as many slots as it gets: says how many.
pub fn greedy(socket: &Path) {
    let (granted, _raw) = match Raw::try_attach(socket, 256) {
        Ok(raw) => (raw.slots(), Some(raw)),
        Err(why) => {
            assert!(why.contains("command slots that they may have"), "{why}");
            (0, None)
        }
    };
    println!("\n= {granted}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Has more children than the daemon has places, each with two connections on which nothing is said.
pub fn family(socket: &Path) {
    for _ in 0..34 {
        // SAFETY: the child makes system calls only, and ends with this process.
        unsafe {
            let (mut done, parent) = ([0; 2], libc::getpid());
            assert_eq!(libc::pipe(done.as_mut_ptr()), 0);
            if libc::fork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let _connections = [raw::connect(socket), raw::connect(socket)];
                libc::write(done[1], [1u8].as_ptr().cast(), 1);
                while libc::getppid() == parent {
                    libc::pause();
                }
                libc::_exit(0);
            }
            let mut byte = [0u8];
            assert_eq!(libc::read(done[0], byte.as_mut_ptr().cast(), 1), 1);
            libc::close(done[0]);
            libc::close(done[1]);
        }
    }
    println!("\n= there");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Owns a region, and reads others' on demand.
pub fn application(socket: &Path) {
    let rma = Rma::open(Settings::attached(socket)).unwrap();
    let memory = rma.allocate(LEN).unwrap();
    memory.write(0, &pattern(LEN));
    let region = memory.register(0..LEN, Rights::READ | Rights::WRITE).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["name"] => format!("{} {}", rma.address(), rma.pid()),
            ["grant", address, pid] => {
                let (peer, pid) = (address.parse().unwrap(), pid.parse().unwrap());
                hex(&region.grant(peer, pid, Rights::READ | Rights::WRITE).unwrap().to_bytes())
            }
            // A child that lives on with everything that this process has open.
            ["fork"] => {
                // SAFETY: the child only sleeps until it is killed.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    loop {
                        // SAFETY: takes nothing.
                        unsafe { libc::pause() };
                    }
                }
                child.to_string()
            }
            ["bytes"] => hex(&memory.to_vec(0..16)),
            // Reads for ever, and says nothing.
            ["load", grant] => {
                let grant = Grant::from_bytes(&unhex(grant)).unwrap();
                println!("\n= under load");
                loop {
                    let reads = (0..8).map(|_| rma.read(&grant, 0, &memory, 0..LEN));
                    rma.block_on(all(reads));
                }
            }
            ["read", grant] => {
                let grant = Grant::from_bytes(&unhex(grant)).unwrap();
                let near = rma.allocate(64).unwrap();
                match rma.block_on(rma.read(&grant, 0, &near, 0..64)) {
                    Ok(_) => hex(&near.to_vec(0..16)),
                    Err(error) => error.to_string(),
                }
            }
            _ => panic!("{line}"),
        };
        println!("\n= {answer}");
    }
}

/// What a program can do to its own connection and memory without the library.
pub fn vandal(socket: &Path, how: &str) {
    let raw = Arc::new(Raw::attach(socket));
    // Connections that stay.
    let _crowd = if how == "crowd" { Raw::crowd(socket) } else { Vec::new() };
    match how {
        "commands" => raw.post_garbage(),
        "overrun" => raw.overrun(),
        "slot" => raw.post_foreign_slot(),
        "packet" => raw.send_garbage(),
        "jam" => raw.jam(),
        "flood" => raw.flood(),
        "neighbours" => assert_eq!(raw.reach_for_neighbours(), 64 * 5 + 63 * 2),
        "race" => raw.race(),
        "sparse" => raw.map_all(),
        "silent" | "crowd" => {}
        _ => panic!("{how}"),
    }
    println!("\n= done");
    // Until it is killed, or let go.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let patience_s = line.trim().parse().unwrap_or(0);
    println!("\n= {}", raw.is_let_go(patience_s));
    std::io::stdin().read_line(&mut line).unwrap();
}

impl Part {
    fn start(part: String) -> Part {
        Part::play("part", PART, &part)
    }

    /// A part played by another user.
    pub fn of_user(uid: u32, part: String) -> Part {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.uid(uid).gid(uid);
        Part::play_by(command, "part", PART, &part)
    }

    pub fn daemon(folder: &Folder, test: u8, host: u8, slots: u32) -> Part {
        let address = address(test, host);
        let mut part = Part::start(format!("daemon {address} {} {slots}", folder.0.display()));
        part.hear("ready");
        part
    }

    /// One that every user may attach to.
    pub fn shared_daemon(folder: &Folder, test: u8, host: u8, slots: u32) -> Part {
        let address = address(test, host);
        let mut part = Part::start(format!("shared {address} {} {slots}", folder.0.display()));
        part.hear("ready");
        part
    }

    pub fn application(socket: &Path) -> Part {
        Part::start(format!("application {}", socket.display()))
    }

    pub fn vandal(socket: &Path, how: &str) -> Part {
        let mut part = Part::start(format!("vandal {} {how}", socket.display()));
        part.hear("= ");
        part
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear("= ")
    }

    pub fn grant_for(&mut self, user: &Rma) -> Grant {
        Grant::from_bytes(&unhex(&self.ask(&format!("grant {} {}", user.address(), user.pid())))).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain values; the child has not been waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until all its threads stand still.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.child.id() as i32, 0);
        // SAFETY: an own child that has not been waited for, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    }
}
