//! Every experiment, built into the program.

use crate::{Error, Experiment};

macro_rules! experiments {
    ($($paper:literal: $($name:literal)*;)*) => {
        const FILES: &[(&str, &str, &str)] = &[$($((
            concat!($paper, "/", $name),
            include_str!(concat!("../", $paper, "/", $name, "/experiment.toml")),
            include_str!(concat!("../", $paper, "/paper.toml")),
        )),*),*];
    };
}

experiments! {
    "irn": "fig1" "fig2" "fig3" "fig4" "fig5" "fig6" "fig7" "fig8" "fig9" "fig9-cross" "fig10" "fig11" "fig12"
        "windows" "spray" "load" "rate" "hosts" "sizes" "buffer" "rto-high" "few-packets" "loss" "loss-rows"
        "tails" "modules";
    "onerma": "fig8" "fig9" "fig10" "fig11a" "fig11b" "fig12" "fig13" "fig14" "fig14-rc" "fig15a" "fig15bc"
        "fig15d" "fig16a" "fig16b" "fig16c" "fig16d";
    "kvs": "fig8" "fig9" "fig14";
    "redn": "table1" "table2" "table3" "table4" "table5" "table7" "fig7" "fig8" "fig8-slopes" "fig10"
        "fig11" "fig13" "fig14" "fig15" "fig16" "scatter" "doubled" "doubled-latency" "doubled-writers"
        "doubled-outage" "turing" "turing-endless";
    "congestion": "dctcp" "dctcp-k" "swift" "hpcc";
    "star": "fig1" "fig10a" "fig10b" "fig11a" "fig11b" "fig12" "loss" "merge" "scale" "switch";
    "swordbox": "concurrency" "qps" "cas-writes" "replace" "reorder" "steering" "keys" "words21"
        "zipf" "size" "locks" "resources";
}

/// Names of all experiments, in the papers' order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|f| f.0)
}

/// An experiment by its name.
pub fn find(name: &str) -> Result<Experiment, Error> {
    match FILES.iter().find(|f| f.0 == name) {
        Some((name, text, paper)) => Experiment::parse(name, text, paper),
        None => {
            let folder = name.split('/').next().unwrap_or(name);
            let near: Vec<&str> = names().filter(|n| n.starts_with(&format!("{folder}/"))).collect();
            let all = if near.is_empty() { names().collect() } else { near };
            Err(Error(format!("there is no experiment `{name}`; there are {}", all.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Setup;
    use crate::definition::Kind;
    use crate::{Scale, own, points};
    use std::path::Path;

    /// A reader can tell what follows from the model from what was put into it.
    #[test]
    fn experiments_of_chains_say_what_is_calibrated_and_what_is_predicted() {
        for name in names().filter(|name| name.starts_with("redn/")) {
            let notes = find(name).unwrap_or_else(|e| panic!("{e}")).notes.concat();
            assert!(notes.contains("Calibrated") || notes.contains("Predicted"), "{name}: {notes}");
        }
    }

    /// Every file is read, and every scenario that it leads to is checked.
    #[test]
    fn all_experiments_are_sound() {
        for name in names() {
            let experiment = find(name).unwrap_or_else(|e| panic!("{e}"));
            let mutations = experiment.mutations.iter().map(Some).chain([None]);
            for (mutation, scale) in mutations.flat_map(|m| [(m, Scale::Quick), (m, Scale::Paper)]) {
                let asked = points::asked(&experiment, scale, mutation);
                assert!(!asked.is_empty() || experiment.kind == Kind::Modules, "{name}");
                for one in asked {
                    match experiment.kind {
                        Kind::Cache => drop(Setup::of(&one, &experiment).unwrap_or_else(|e| panic!("{e}"))),
                        Kind::Chains => {
                            let setup = crate::chains::Setup::of(&one).unwrap_or_else(|e| panic!("{e}"));
                            setup.plan(&one.name, 1).unwrap_or_else(|e| panic!("{e}"));
                        }
                        Kind::Budget => {
                            let setup = crate::budget::Setup::of(&one).unwrap_or_else(|e| panic!("{e}"));
                            setup.needs(&one.name).unwrap_or_else(|e| panic!("{e}"));
                        }
                        Kind::Rack => {
                            let setup = crate::rack::Setup::of(&one).unwrap_or_else(|e| panic!("{e}"));
                            setup.plan(&one.name, 1).unwrap_or_else(|e| panic!("{e}"));
                        }
                        _ => {
                            let scenario = points::scenario(&one).unwrap_or_else(|e| panic!("{e}"));
                            points::plan(&one.name, &scenario, 1).unwrap_or_else(|e| panic!("{e}"));
                        }
                    }
                }
            }
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/irn/fig1/experiment.toml");
        assert_eq!(own::load(Path::new(file)).unwrap()[0].name, "irn/fig1");
        assert!(own::load(Path::new("nothing.toml")).unwrap_err().0.starts_with("nothing.toml: "));
        assert!(find("irn/fig99").unwrap_err().0.contains("irn/fig1, irn/fig2"));
    }
}
