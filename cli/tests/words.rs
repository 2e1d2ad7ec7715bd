//! `adverb completions` and `adverb man`: all commands are in them, and shells and `man` take them.

use std::fs;
use std::process::{Command, Output};

fn adverb(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).args(words).output().unwrap()
}

#[test]
fn bash_completes_commands_and_options() {
    let script = adverb(&["completions", "bash"]);
    assert!(script.status.success());
    let file = std::env::temp_dir().join(format!("adverb-cli-completions-{}", std::process::id()));
    fs::write(&file, &script.stdout).unwrap();
    let ask = |words: &str, at: usize| {
        let bash = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; cur=${{COMP_WORDS[{at}]}}; \
             prev=${{COMP_WORDS[{}]}}; _adverb adverb \"$cur\" \"$prev\"; echo ${{COMPREPLY[*]}}",
            file.display(),
            at - 1
        );
        let output = Command::new("bash").args(["-c", &bash]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(ask("adverb dev", 1), "devices");
    assert_eq!(ask("adverb lab mu", 2), "mutate");
    assert_eq!(ask("adverb sim --sta", 2), "--stats");
    assert_eq!(ask("adverb run --transport star-s", 3), "star-server");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = adverb(&["completions", shell]);
        assert!(script.status.success() && script.stdout.len() > 1000, "{shell}");
    }
    assert_eq!(adverb(&["completions", "tcsh"]).status.code(), Some(2));
    fs::remove_file(file).unwrap();
}

#[test]
fn every_command_has_a_page() {
    let folder = std::env::temp_dir().join(format!("adverb-cli-man-{}", std::process::id()));
    let place = folder.join("man1");
    assert!(adverb(&["man", &place.display().to_string()]).status.success());
    let help = String::from_utf8(adverb(&["--help"]).stdout).unwrap();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let commands: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let page = fs::read_to_string(place.join(format!("adverb-{command}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    let run = fs::read_to_string(place.join("adverb-lab-run.1")).unwrap();
    assert!(run.contains("first\\-seed") && run.contains("adverb lab run irn/fig1"), "{run}");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let refused = adverb(&["man", &file.display().to_string()]);
    assert_eq!(refused.status.code(), Some(1), "a file is no directory");
    fs::remove_dir_all(folder).unwrap();
}
