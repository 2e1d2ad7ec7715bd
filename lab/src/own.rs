//! Experiments of one's own: files outside this program, a skeleton to begin with, and published
//! experiments with something set otherwise.

use crate::definition::{Point, Sweep};
use crate::points::{self, merge};
use crate::{Error, Experiment};
use core::fmt;
use core::str::FromStr;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The file of an experiment, in a folder of its own.
const FILE: &str = "experiment.toml";
/// Values that one `--set` may have: points of a sweep.
const MAX_VALUES: usize = 64;

/// What `adverb lab new` writes: `paper.toml`, and `first/experiment.toml`.
const SKELETON: [(&str, &str); 2] = [
    ("paper.toml", include_str!("skeleton/paper.toml")),
    ("first/experiment.toml", include_str!("skeleton/experiment.toml")),
];

/// The experiments of a path: a file, the folder of one, or a folder that has folders of several.
pub fn load(path: &Path) -> Result<Vec<Experiment>, Error> {
    let failed = |e: std::io::Error| Error(format!("{}: {e}; name an {FILE} or its folder", path.display()));
    let full = path.canonicalize().map_err(failed)?;
    if full.is_file() {
        return Ok(vec![read(&full)?]);
    }
    if full.join(FILE).is_file() {
        return Ok(vec![read(&full.join(FILE))?]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&full).map_err(failed)? {
        files.push(entry.map_err(failed)?.path().join(FILE));
    }
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        return Err(Error(format!("{}: there is no {FILE} in it, nor in its folders", path.display())));
    }
    files.iter().map(|file| read(file)).collect()
}

/// One file, with the `paper.toml` of the folder above its own, or of its own.
fn read(file: &Path) -> Result<Experiment, Error> {
    let text = |path: &Path| fs::read_to_string(path).map_err(|e| Error(format!("{}: {e}", path.display())));
    let own = file.parent().unwrap_or(Path::new("/"));
    let above = own.parent().unwrap_or(own);
    let paper = [above, own].map(|folder| folder.join("paper.toml")).into_iter().find(|path| path.is_file());
    let paper = paper.ok_or_else(|| {
        Error(format!("{}: there is no paper.toml in the folder above, nor beside it", file.display()))
    })?;
    let name =
        |folder: &Path| folder.file_name().map_or("own".into(), |name| name.to_string_lossy().into_owned());
    Experiment::parse(&format!("{}/{}", name(above), name(own)), &text(file)?, &text(&paper)?)
}

/// Writes an experiment to begin with, in a folder that there is not yet. Which files.
pub fn create(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |path: &Path, e: std::io::Error| Error(format!("{}: {e}", path.display()));
    fs::create_dir(folder).map_err(|e| failed(folder, e))?;
    let mut written = Vec::new();
    for (name, text) in SKELETON {
        let path = folder.join(name);
        let inner = path.parent().unwrap_or(folder);
        fs::create_dir_all(inner).map_err(|e| failed(inner, e))?;
        fs::write(&path, text).map_err(|e| failed(&path, e))?;
        written.push(path);
    }
    Ok(written)
}

/// A key of a scenario and what it is set to: `switch.buffer=240KB`, or several values,
/// `switch.buffer=60KB,240KB`.
#[derive(Clone, PartialEq, Debug)]
pub struct Set {
    key: String,
    /// As they were written, and as they were read.
    values: Vec<(String, Value)>,
}

/// As it is written.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<&str> = self.values.iter().map(|(text, _)| text.as_str()).collect();
        write!(f, "{}={}", self.key, values.join(","))
    }
}

impl FromStr for Set {
    type Err = String;

    fn from_str(text: &str) -> Result<Set, String> {
        let (key, values) = text.split_once('=').ok_or("write KEY=VALUE, or KEY=VALUE,VALUE,..")?;
        let word = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !part.is_empty() && part.chars().all(plain)
        };
        if !key.split('.').all(word) {
            return Err(format!("`{key}` is no key, such as switch.buffer"));
        }
        let read = |text: &str| (text.to_owned(), value(text));
        let values: Vec<(String, Value)> = parts(values).into_iter().map(read).collect();
        match values.len() {
            1..=MAX_VALUES => Ok(Set { key: key.to_owned(), values }),
            _ => Err(format!("{MAX_VALUES} values at most")),
        }
    }
}

/// Cuts at the commas that are in no brackets and no quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut from, mut out) = (0i32, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                out.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out
}

/// A value as TOML has it, or a word as it stands.
fn value(text: &str) -> Value {
    let read = toml::from_str::<Table>(&format!("value = {text}")).ok().filter(|table| table.len() == 1);
    read.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.to_owned()))
}

impl Set {
    fn table(&self, value: &Value) -> Table {
        let mut inner = value.clone();
        for part in self.key.rsplit('.') {
            inner = Value::Table(Table::from_iter([(part.to_owned(), inner)]));
        }
        match inner {
            Value::Table(table) => table,
            _ => Table::new(),
        }
    }

    /// Its values as points along the x axis: themselves where they are numbers, else their places in the
    /// row.
    fn sweep(&self) -> Sweep {
        let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        let numbers: Option<Vec<f64>> = self.values.iter().map(|(_, value)| number(value)).collect();
        let label = match numbers {
            Some(_) => self.key.clone(),
            None => {
                let all = (1..).zip(&self.values).map(|(at, (text, _))| format!("{at}: {text}"));
                format!("{} ({})", self.key, all.collect::<Vec<_>>().join(", "))
            }
        };
        let points = self.values.iter().enumerate().map(|(at, (_, value))| Point {
            x: numbers.as_ref().map_or((at + 1) as f64, |all| all[at]),
            own: self.table(value),
            ..Point::default()
        });
        Sweep { label, log: false, points: points.collect() }
    }
}

/// Sets something otherwise, last of all: of every series, or, where one of them has several values, along
/// the x axis in place of the experiment's own points. Its bounds then report only: what they claim is of
/// what was published.
pub fn change(experiment: &mut Experiment, sets: &[Set]) -> Result<(), Error> {
    if sets.is_empty() {
        return Ok(());
    }
    let fail = |why: &str| Err(Error(format!("{}: {why}", experiment.name)));
    if experiment.kind == crate::definition::Kind::Modules {
        return fail("there is nothing to set: it measures this machine");
    }
    let (swept, single): (Vec<&Set>, Vec<&Set>) = sets.iter().partition(|set| set.values.len() > 1);
    if swept.len() > 1 {
        return fail("one --set may have several values; run it once for each value of the other");
    }
    for set in single {
        merge(&mut experiment.own, &set.table(&set.values[0].1));
    }
    if let Some(set) = swept.first() {
        experiment.sweep = Some(set.sweep());
        experiment.bounds.retain(|b| b.at.is_empty() && b.over_at.is_none() && b.values.is_empty());
    }
    for bound in &mut experiment.bounds {
        (bound.gate, bound.differs) = (false, None);
    }
    Ok(())
}

/// Has an experiment run longer: so many times the flows, or the time in which they begin. Its bounds stay,
/// since what they claim is of no length. What has neither runs as ever, and says so.
pub fn lengthen(experiment: &mut Experiment, times: u32) {
    if times < 2 {
        return;
    }
    let simulated = experiment.kind == crate::definition::Kind::Simulation;
    let mut asked = points::asked(experiment, crate::Scale::Quick, None);
    let can = simulated && asked.iter_mut().all(|asked| points::lengthen(&mut asked.table, times));
    experiment.notes.push(match can {
        true => format!("{times} times the flows, or the time in which they begin (--longer)."),
        false => {
            "--longer changes nothing here: no number of flows, and no time in which they begin.".to_owned()
        }
    });
    experiment.longer = if can { times } else { 1 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scale, registry};

    fn set(text: &str) -> Result<Set, String> {
        text.parse()
    }

    #[test]
    fn what_is_set_reads_as_values_of_toml_or_as_words() {
        let read =
            |text: &str| set(text).unwrap().values.into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(read("a.b=240KB"), [Value::String("240KB".to_owned())]);
        assert_eq!(read("a=0.7,0.9"), [Value::Float(0.7), Value::Float(0.9)]);
        assert_eq!(read("a=true"), [Value::Boolean(true)]);
        assert_eq!(read("a=[1, 2],[3]").len(), 2);
        assert_eq!(read("a=\"x,y\",z").len(), 2);
        assert_eq!(read("a=1\nb = 2").len(), 1, "nothing but the one key");
        for wrong in ["a", "=1", "a..b=1", "a b=1"] {
            assert!(set(wrong).is_err(), "{wrong}");
        }
        assert!(set(&format!("a={}", vec!["1"; MAX_VALUES + 1].join(","))).is_err());
    }

    #[test]
    fn a_set_is_the_last_word_and_takes_the_gates_away() {
        let mut experiment = registry::find("irn/fig1").unwrap();
        assert!(experiment.bounds.iter().any(|bound| bound.gate));
        let sets =
            ["transport.irn.bdp-packets=64", "switch.buffer=60KB,240KB"].map(|text| set(text).unwrap());
        change(&mut experiment, &sets).unwrap();
        assert!(experiment.bounds.iter().all(|bound| !bound.gate));
        let asked = points::asked(&experiment, Scale::Quick, None);
        assert_eq!(asked.len(), 2 * experiment.series.len());
        let irn = asked.iter().find(|a| a.name.contains("IRN") && a.at == 1).unwrap();
        assert_eq!(irn.table["switch"]["buffer"].as_str(), Some("240KB"));
        assert_eq!(irn.table["transport"]["irn"]["bdp-packets"].as_integer(), Some(64));
        assert_eq!(experiment.sweep.as_ref().unwrap().label, "switch.buffer (1: 60KB, 2: 240KB)");
        let two = ["a=1,2", "b=1,2"].map(|text| set(text).unwrap());
        assert!(change(&mut experiment, &two).unwrap_err().0.contains("one --set"));
        // What a scenario does not know is refused by name.
        let mut wrong = registry::find("irn/fig1").unwrap();
        change(&mut wrong, &[set("switch.bufer=1").unwrap()]).unwrap();
        let asked = points::asked(&wrong, Scale::Quick, None);
        assert!(points::scenario(&asked[0]).unwrap_err().0.contains("bufer"));
    }

    /// Each published simulation but an incast by itself has something to lengthen, and is still a scenario.
    #[test]
    fn what_runs_longer_keeps_its_gates() {
        let mut stay = Vec::new();
        for name in registry::names().filter(|name| name.starts_with("irn/") || name.starts_with("onerma/")) {
            let mut experiment = registry::find(name).unwrap();
            let gates = experiment.bounds.iter().filter(|bound| bound.gate).count();
            lengthen(&mut experiment, 2);
            assert_eq!(gates, experiment.bounds.iter().filter(|bound| bound.gate).count());
            if experiment.longer < 2 {
                stay.push(name);
                continue;
            }
            for asked in points::asked(&experiment, Scale::Quick, None) {
                points::scenario(&asked).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        assert_eq!(stay, ["irn/fig9", "irn/modules", "onerma/fig14-rc"]);
    }

    #[test]
    fn the_skeleton_is_an_experiment_and_folders_are_found() {
        let folder = std::env::temp_dir().join(format!("adverb-lab-own-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let files = create(&folder).unwrap();
        assert!(create(&folder).is_err(), "nothing is overwritten");
        for path in [folder.clone(), folder.join("first"), files[1].clone()] {
            let found = load(&path).unwrap();
            assert_eq!(found.len(), 1, "{}", path.display());
            for asked in points::asked(&found[0], Scale::Quick, None) {
                points::plan(&asked.name, &points::scenario(&asked).unwrap(), 1).unwrap();
            }
        }
        fs::remove_file(&files[0]).unwrap();
        assert!(load(&folder).unwrap_err().0.contains("no paper.toml"));
        fs::remove_file(&files[1]).unwrap();
        assert!(load(&folder).unwrap_err().0.contains("there is no experiment.toml"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(load(&folder).is_err());
    }
}
