//! Plots of the real cache: latency and rate against load as in the paper's figure 8, or over time as in its
//! figures 9 and 14.

use super::{Event, Served, What, us};
use crate::definition::Experiment;
use crate::plot::{Area, Drawn, colour, number, top};
use crate::run::Outcome;
use adverb_apps::kv::Window;
use plotters::prelude::*;

const AXES: (u32, u32) = (40, 62);
const PANEL: (u32, u32) = (560, 320);
const TITLE: u32 = 34;
/// Loads beyond so many times the saturation are not plotted: they would press the others together.
const PLOTTED: f64 = 2.5;

/// A line of a panel: its name, its number as a colour, its points.
struct Line {
    name: String,
    colour: usize,
    points: Vec<(f64, f64)>,
}

/// A panel: its axes, and what is in it.
struct Panel {
    x: &'static str,
    y: &'static str,
    log: bool,
    lines: Vec<Line>,
    /// Where vertical lines stand, and what for.
    marks: Vec<(f64, String)>,
}

/// The plot as the text of an SVG file.
pub(crate) fn draw(experiment: &Experiment, outcome: &Outcome, text: &mut String) -> Drawn {
    let columns: Vec<(String, Vec<Panel>)> = match &experiment.sweep {
        Some(_) => vec![(String::new(), against_load(experiment, outcome))],
        None => (0..experiment.series.len())
            .filter_map(|n| {
                let served = outcome.runs(n, 0).first()?.served.as_ref()?;
                Some((experiment.series[n].name.clone(), over_time(served)))
            })
            .collect(),
    };
    let rows = columns.iter().map(|(_, panels)| panels.len()).max().unwrap_or(1).max(1);
    // Against load side by side, over time one above the other, on the same axis.
    let (across, down) = if experiment.sweep.is_some() { (rows, 1) } else { (columns.len().max(1), rows) };
    let size = (PANEL.0 * across as u32, TITLE + PANEL.1 * down as u32);
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, body) = root.split_vertically(TITLE);
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    title.draw(&Text::new(format!("{}: {}", experiment.name, experiment.title), (12, 10), style))?;
    let areas = body.split_evenly((down, across));
    for (column, (name, panels)) in columns.iter().enumerate() {
        for (row, panel) in panels.iter().enumerate() {
            let area = if experiment.sweep.is_some() { &areas[row] } else { &areas[row * across + column] };
            let caption = if row == 0 { name.as_str() } else { "" };
            panel.draw(caption, area)?;
        }
    }
    root.present()?;
    Ok(())
}

/// Latency and answered lookups by lookups asked for, each the mean over repetitions.
fn against_load(experiment: &Experiment, outcome: &Outcome) -> Vec<Panel> {
    let series = || 0..experiment.series.len();
    let mean = |n: usize, at: usize, of: fn(&Served) -> f64| {
        let values: Vec<f64> =
            outcome.runs(n, at).iter().filter_map(|run| run.served.as_deref().map(of)).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    let asked: fn(&Served) -> f64 = Served::asked_kps;
    let line = |n: usize, what: &str, colour: usize, of: fn(&Served) -> f64| Line {
        name: if experiment.series.len() > 1 {
            format!("{}, {what}", experiment.series[n].name)
        } else {
            what.to_owned()
        },
        colour,
        points: (0..outcome.places)
            .map(|at| (mean(n, at, asked), mean(n, at, of)))
            .filter(|point| point.0 <= PLOTTED * mean(n, 0, |s| s.saturation / 1e3))
            .collect(),
    };
    let latencies = series().flat_map(|n| {
        [
            line(n, "median", 3 * n, |s| s.latency_us(0.5)),
            line(n, "99%", 3 * n + 1, |s| s.latency_us(0.99)),
            line(n, "99.9%", 3 * n + 2, |s| s.latency_us(0.999)),
        ]
    });
    let answered = series().map(|n| line(n, "answered", 3 * n, Served::answered_kps));
    let marks = || {
        let saturation = |n| mean(n, 0, |s| s.saturation / 1e3);
        series().map(|n| (saturation(n), "saturation".to_owned())).collect::<Vec<_>>()
    };
    let x = "lookups asked for (thousands a second)";
    let (latencies, answered) = (latencies.collect(), answered.collect());
    vec![
        Panel { x, y: "latency from the arrival (us)", log: true, lines: latencies, marks: marks() },
        Panel { x, y: "answered (thousands a second)", log: false, lines: answered, marks: marks() },
    ]
}

/// Latency, rate by replica, and where keys changed what was refused, of the first repetition.
fn over_time(served: &Served) -> Vec<Panel> {
    let slices = &served.slices;
    let length_s = slices.get(1).map_or(1.0, |s| (s.start - slices[0].start).as_secs_f64());
    let t_ms = |slice: &Window| us(slice.start) / 1e3;
    let of =
        |of: &dyn Fn(&Window) -> f64| slices.iter().map(|slice| (t_ms(slice), of(slice))).collect::<Vec<_>>();
    let line = |name: &str, colour, points| Line { name: name.to_owned(), colour, points };
    let marks = || {
        let mark = |(event, t, _): &(Event, f64, f64)| {
            let what = match event.what {
                What::Kill => "killed",
                What::RotateIndex => "index key",
                What::RotateData => "data key",
            };
            (*t, format!("R{} {what}", event.replica))
        };
        served.events.iter().map(mark).collect::<Vec<_>>()
    };
    // A slice without a lookup has no latency, and a gap in the line.
    let mut latencies = vec![
        line("longest", 5, of(&|s| us(s.latency.max()))),
        line("99%", 1, of(&|s| us(s.latency.percentile(0.99)))),
        line("median", 0, of(&|s| us(s.latency.percentile(0.5)))),
    ];
    latencies.iter_mut().for_each(|line| line.points.retain(|point| point.1 > 0.0));
    let replicas = served.report.all.replicas.len();
    let rates = (0..replicas).map(|at| {
        let rate = |s: &Window| s.replicas.get(at).map_or(0, |r| r.hits) as f64 / length_s / 1e3;
        line(&format!("R{}", at + 1), at, of(&rate))
    });
    let x = "time (ms)";
    let rates = rates.collect();
    let mut panels = vec![
        Panel { x, y: "latency from the arrival (us)", log: true, lines: latencies, marks: marks() },
        Panel { x, y: "lookups answered (thousands a second)", log: false, lines: rates, marks: marks() },
    ];
    if served.events.iter().any(|(event, ..)| event.what == What::Kill) {
        let allowed = |at: usize| {
            let window = |s: &Window| Some((t_ms(s), (*s.allowed.get(at)?)?));
            line(&format!("R{}", at + 1), at, slices.iter().filter_map(window).collect())
        };
        let lines = (0..replicas).map(allowed).collect();
        panels.push(Panel { x, y: "reads allowed at once (congestion)", log: true, lines, marks: marks() });
    } else if !served.events.is_empty() {
        let lines = vec![
            line("refused", 1, of(&|s| s.replicas.iter().map(|r| r.refused).sum::<u64>() as f64)),
            line("under way at once", 5, of(&|s| s.under_way as f64)),
        ];
        panels.push(Panel { x, y: "operations in a slice", log: false, lines, marks: marks() });
    }
    panels
}

impl Panel {
    fn draw(&self, caption: &str, area: &Area<'_>) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let xs = || points().map(|p| p.0).chain(self.marks.iter().map(|m| m.0));
        let (left, right) = (xs().fold(f64::MAX, f64::min).min(0.0), top(xs()) / 1.1 * 1.03);
        let most = top(points().map(|p| p.1));
        let least = points().map(|p| p.1).filter(|y| *y > 0.0).fold(most, f64::min);
        let mut chart = ChartBuilder::on(area);
        chart.margin(12).x_label_area_size(AXES.0).y_label_area_size(AXES.1);
        if !caption.is_empty() {
            chart.caption(caption, ("sans-serif", 14));
        }
        // Room above for the names of lines and marks.
        if self.log {
            let (low, high) = ((least * 0.8).max(1e-3), most * (most / least).powf(0.35).max(2.0));
            self.fill(chart.build_cartesian_2d(left..right, (low..high).log_scale())?, (low, high))
        } else {
            self.fill(chart.build_cartesian_2d(left..right, 0.0..most * 1.3)?, (0.0, most * 1.3))
        }
    }

    fn fill<'a, Y>(
        &self,
        mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
        (low, high): (f64, f64),
    ) -> Drawn
    where
        Y: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(WHITE)
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .draw()?;
        for (x, what) in &self.marks {
            let style = BLACK.mix(0.6).stroke_width(1);
            chart.draw_series(core::iter::once(PathElement::new(vec![(*x, low), (*x, high)], style)))?;
            let name = Text::new(format!(" {what}"), (*x, high), ("sans-serif", 11).into_font());
            chart.draw_series(core::iter::once(name))?;
        }
        for line in &self.lines {
            let colour = colour(line.colour);
            let path = PathElement::new(line.points.clone(), colour.stroke_width(2));
            chart
                .draw_series(core::iter::once(path))?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(3)));
            if line.points.len() <= 40 {
                chart.draw_series(line.points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 12))
            .draw()?;
        Ok(())
    }
}
