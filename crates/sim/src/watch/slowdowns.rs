//! How much longer flows took than in an idle network, by workload and by size: short flows suffer from
//! queues, long ones from their share, and a mean over all shows neither.

use crate::sim::Sim;
use crate::watch::statistics::percentile;
use core::fmt::Write;
use std::collections::BTreeMap;

/// Sizes at which classes begin, in bytes: those of the text of papers that bin flows by size.
pub const SIZES: [u32; 6] = [0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Flows of one workload and one class of sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Class {
    /// The workload's name.
    pub workload: String,
    /// From so many bytes.
    pub from: u32,
    /// To fewer than so many; none without an end.
    pub to: Option<u32>,
    /// Flows that ended well.
    pub flows: u32,
    /// Flows that failed, or did not end.
    pub failed: u32,
    /// Mean of their slowdowns; none of none.
    pub mean: Option<f64>,
    /// Percentiles 50, 95 and 99.
    pub percentiles: [Option<f64>; 3],
}

impl Sim {
    /// The name of the workload whose flows have a tag; empty where nobody has named any.
    pub fn workload_name(&self, tag: u32) -> &str {
        let number = self.flows.workload_of(tag);
        self.flows.names.get(number as usize).map_or("", String::as_str)
    }

    /// Slowdowns by workload, in the order of names, and size; classes that have flows.
    pub fn slowdowns(&self) -> Vec<Class> {
        let mut classes: BTreeMap<(&str, usize), (Vec<f64>, u32)> = BTreeMap::new();
        for flow in self.flows() {
            let bytes = flow.spec.bytes;
            let size = SIZES.partition_point(|from| *from <= bytes) - 1;
            let (ended, failed) = classes.entry((self.workload_name(flow.spec.tag), size)).or_default();
            if flow.failed || flow.received == u64::MAX {
                *failed += 1;
            } else {
                ended.push((flow.received - flow.spec.start) as f64 / self.ideal_ps(flow) as f64);
            }
        }
        let class = |((workload, size), (mut ended, failed)): ((&str, usize), (Vec<f64>, u32))| {
            ended.sort_by(f64::total_cmp);
            let mean = ended.iter().sum::<f64>() / ended.len() as f64;
            Class {
                workload: workload.to_owned(),
                from: SIZES[size],
                to: SIZES.get(size + 1).copied(),
                flows: ended.len() as u32,
                failed,
                mean: (!ended.is_empty()).then_some(mean),
                percentiles: [0.5, 0.95, 0.99].map(|p| percentile(&ended, p)),
            }
        };
        classes.into_iter().map(class).collect()
    }

    /// The same as CSV. What no flow has is empty.
    pub fn slowdowns_csv(&self) -> String {
        let mut out = String::from(
            "workload_name,from_bytes,to_bytes,flows,failed,slowdown_avg,slowdown_p50,slowdown_p95,\
             slowdown_p99\n",
        );
        let digits = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        for class in self.slowdowns() {
            let Class { workload, from, to, flows, failed, mean, percentiles } = class;
            let to = to.map_or(String::new(), |to| to.to_string());
            let [p50, p95, p99] = percentiles.map(digits);
            // Writing to a `String` cannot fail.
            let _ =
                writeln!(out, "{workload},{from},{to},{flows},{failed},{},{p50},{p95},{p99}", digits(mean));
        }
        out
    }
}
