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
    "irn": "fig1" "fig2" "fig3" "fig4" "fig5" "fig6" "fig7" "fig8" "fig9" "fig9-cross" "fig10" "fig11" "fig12" "load" "rate" "hosts" "sizes" "buffer" "rto-high" "few-packets" "modules";
    "onerma": "fig8" "fig9" "fig10" "fig11a" "fig11b" "fig12" "fig13" "fig14" "fig15a" "fig15bc" "fig16a" "fig16b" "fig16c" "fig16d";
    "kvs": "fig8" "fig9" "fig14";
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

    /// Every file is read, and every scenario that it leads to is checked.
    #[test]
    fn all_experiments_are_sound() {
        for name in names() {
            let experiment = find(name).unwrap_or_else(|e| panic!("{e}"));
            for scale in [crate::Scale::Quick, crate::Scale::Paper] {
                if experiment.kind == crate::definition::Kind::Cache {
                    let setups = crate::served::setups(&experiment, scale).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(setups.len(), experiment.series.len());
                    let served = crate::served::Served::default();
                    served.measured(&experiment.metrics).unwrap_or_else(|e| panic!("{name}: {e}"));
                    continue;
                }
                for point in crate::points::points(&experiment, scale).unwrap_or_else(|e| panic!("{e}")) {
                    point.plan(1).unwrap_or_else(|e| panic!("{e}"));
                }
            }
        }
        assert!(find("irn/fig99").unwrap_err().0.contains("irn/fig1, irn/fig2"));
    }
}
