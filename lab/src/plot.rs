//! Plots as SVG: bars for series, lines along a sweep, the tail of one-packet messages as a cumulative curve.
//! One panel for each metric, as the papers' figures have them; whiskers and bands are 95% confidence
//! intervals.

use crate::cache;
use crate::definition::{Experiment, Kind, Metrics};
use crate::measure::{Metric, TAIL};
use crate::run::Outcome;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours that stay apart in print and for the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
    RGBColor(90, 90, 90),
];
const PANEL: (u32, u32) = (420, 320);
const TITLE: u32 = 34;
const LEGEND_LINE: u32 = 20;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn core::error::Error>>;

/// A panel: one metric, the curve of tails, or what happened over time in one series.
enum Panel {
    Metric(usize),
    Tail,
    Timeline(usize),
}

/// The plot of an experiment as the text of an SVG file.
pub fn svg(experiment: &Experiment, outcome: &Outcome) -> Result<String, crate::Error> {
    let mut text = String::new();
    let draw = if experiment.kind == Kind::Cache { cache::plot::draw } else { draw };
    draw(experiment, outcome, &mut text)
        .map_err(|e| crate::Error(format!("{}: plot: {e}", experiment.name)))?;
    Ok(text)
}

fn draw(experiment: &Experiment, outcome: &Outcome, text: &mut String) -> Drawn {
    let single = |m: &Metric| matches!(m, Metric::SingleP90 | Metric::SingleP99 | Metric::SingleP999);
    let tails = outcome.places == 1
        && matches!(&experiment.measured, Metrics::Simulated(metrics) if metrics.iter().any(single));
    let mut panels: Vec<Panel> =
        if tails { vec![Panel::Tail] } else { (0..experiment.metrics.len()).map(Panel::Metric).collect() };
    let timed = |n: &usize| outcome.places == 1 && !outcome.runs(*n, 0)[0].timeline.is_empty();
    panels.extend((0..experiment.series.len()).filter(timed).map(Panel::Timeline));
    let legend = LEGEND_LINE * experiment.series.len() as u32 + 14;
    let width = PANEL.0 * panels.len().max(1) as u32;
    let root = SVGBackend::with_string(text, (width.max(560), TITLE + PANEL.1 + legend)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE);
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    title.draw(&Text::new(format!("{}: {}", experiment.name, experiment.title), (12, 10), style))?;
    let (body, names) = rest.split_vertically(PANEL.1);
    for (panel, area) in panels.iter().zip(body.split_evenly((1, panels.len().max(1)))) {
        match panel {
            Panel::Metric(m) if experiment.sweep.is_some() => lines(experiment, outcome, *m, &area)?,
            Panel::Metric(m) => bars(experiment, outcome, *m, &area)?,
            Panel::Tail => tail(experiment, outcome, &area)?,
            Panel::Timeline(n) => timeline(experiment, outcome, *n, &area)?,
        }
    }
    for (n, series) in experiment.series.iter().enumerate() {
        let y = n as i32 * LEGEND_LINE as i32 + 4;
        names.draw(&Rectangle::new([(16, y), (30, y + 12)], colour(n).filled()))?;
        names.draw(&Text::new(series.name.clone(), (38, y), ("sans-serif", 14).into_font()))?;
    }
    root.present()?;
    Ok(())
}

pub(crate) fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// The end of an axis that begins at 0 and holds all values.
pub(crate) fn top(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.1 } else { 1.0 }
}

/// Half of the confidence interval; nothing for one seed.
fn whisker(half: f64) -> f64 {
    if half.is_finite() { half } else { 0.0 }
}

fn bars(experiment: &Experiment, outcome: &Outcome, metric: usize, area: &Area<'_>) -> Drawn {
    let estimates: Vec<_> = (0..experiment.series.len()).map(|n| outcome.estimate(n, 0, metric)).collect();
    let most = top(estimates.iter().map(|e| e.mean + whisker(e.half_width)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(14)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..estimates.len() as f64, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc(experiment.measured.label(metric))
        .light_line_style(WHITE)
        .y_label_formatter(&number)
        .draw()?;
    for (n, e) in estimates.iter().enumerate().filter(|(_, e)| e.mean.is_finite()) {
        let x = n as f64;
        let bar = Rectangle::new([(x + 0.15, 0.0), (x + 0.85, e.mean)], colour(n).filled());
        chart.draw_series(core::iter::once(bar))?;
        let half = whisker(e.half_width);
        if half > 0.0 {
            let (low, high) = ((e.mean - half).max(0.0), e.mean + half);
            let strokes = [
                vec![(x + 0.5, low), (x + 0.5, high)],
                vec![(x + 0.42, low), (x + 0.58, low)],
                vec![(x + 0.42, high), (x + 0.58, high)],
            ];
            chart.draw_series(strokes.map(|s| PathElement::new(s, BLACK)))?;
        }
    }
    Ok(())
}

fn lines(experiment: &Experiment, outcome: &Outcome, metric: usize, area: &Area<'_>) -> Drawn {
    let Some(sweep) = &experiment.sweep else { return Ok(()) };
    let xs: Vec<f64> = sweep.points.iter().map(|p| p.x).collect();
    let all = (0..experiment.series.len()).flat_map(|n| (0..outcome.places).map(move |at| (n, at)));
    let most =
        top(all.map(|(n, at)| outcome.estimate(n, at, metric)).map(|e| e.mean + whisker(e.half_width)));
    let (low, high) = xs.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let room = if high > low { (high - low) * 0.04 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(low - room..high + room, 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc(sweep.label.as_str())
        .y_desc(experiment.measured.label(metric))
        .light_line_style(WHITE)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    for n in 0..experiment.series.len() {
        let estimates: Vec<_> = (0..outcome.places).map(|at| outcome.estimate(n, at, metric)).collect();
        let seen = || xs.iter().zip(&estimates).filter(|(_, e)| e.mean.is_finite());
        let line: Vec<(f64, f64)> = seen().map(|(x, e)| (*x, e.mean)).collect();
        let whiskers = seen().map(|(x, e)| {
            let half = whisker(e.half_width);
            PathElement::new(vec![(*x, (e.mean - half).max(0.0)), (*x, e.mean + half)], colour(n).mix(0.5))
        });
        chart.draw_series(whiskers)?;
        chart.draw_series(line.iter().map(|p| Circle::new(*p, 3, colour(n).filled())))?;
        chart.draw_series(core::iter::once(PathElement::new(line, colour(n).stroke_width(2))))?;
    }
    Ok(())
}

/// Goodput over time of one series' first run, a line for each target; all in the series' colour, further
/// targets paler.
fn timeline(experiment: &Experiment, outcome: &Outcome, n: usize, area: &Area<'_>) -> Drawn {
    let slices = &outcome.runs(n, 0)[0].timeline;
    let mut targets: Vec<u32> = slices.iter().map(|s| s.target).collect();
    targets.sort_unstable();
    targets.dedup();
    let end = slices.iter().map(|s| s.t_us).fold(0.0, f64::max) + f64::from(experiment.timeline_us);
    // What several initiators ask of one target counts together.
    let line = |target: u32| {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for s in slices.iter().filter(|s| s.target == target) {
            match line.last_mut() {
                Some((t, sum)) if *t == s.t_us => *sum += s.goodput,
                _ => line.push((s.t_us, s.goodput)),
            }
        }
        line
    };
    let lines: Vec<_> = targets.iter().map(|target| line(*target)).collect();
    let most = top(lines.iter().flatten().map(|(_, gbps)| *gbps));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc("time (us)")
        .y_desc("goodput by target (Gb/s)")
        .light_line_style(WHITE)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    for (at, line) in lines.into_iter().enumerate() {
        let colour = colour(n).mix(1.0 / (1.0 + at as f64));
        chart.draw_series(core::iter::once(PathElement::new(line, colour.stroke_width(2))))?;
    }
    Ok(())
}

fn tail(experiment: &Experiment, outcome: &Outcome, area: &Area<'_>) -> Drawn {
    let curve = |n: usize| -> Vec<(f64, f64)> {
        let runs: Vec<_> = outcome.runs(n, 0).iter().filter(|r| !r.tail.is_empty()).collect();
        let mean = |at: usize| runs.iter().map(|r| r.tail[at]).sum::<f64>() / runs.len() as f64;
        let seen = if runs.is_empty() { 0 } else { TAIL.len() };
        (0..seen).map(|at| (mean(at), TAIL[at])).collect()
    };
    let curves: Vec<_> = (0..experiment.series.len()).map(curve).collect();
    let most = top(curves.iter().flatten().map(|p| p.0));
    let least = curves.iter().flatten().map(|p| p.0).fold(most, f64::min).max(1e-6);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d((least * 0.8..most).log_scale(), 90.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("latency of messages of one packet (ms)")
        .y_desc("cumulative share (%)")
        .light_line_style(WHITE)
        .x_label_formatter(&number)
        .draw()?;
    for (n, curve) in curves.into_iter().enumerate() {
        chart.draw_series(core::iter::once(PathElement::new(curve, colour(n).stroke_width(2))))?;
    }
    Ok(())
}

/// Three significant digits, no more zeros than needed.
pub(crate) fn number(value: &f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let values = [0.0, 0.25, 0.001, 1.0, 12.5, 40.0, 1500.0];
        assert_eq!(values.map(|v| number(&v)), ["0", "0.25", "0.001", "1", "12.5", "40", "1500"]);
    }
}
