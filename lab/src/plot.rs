//! Plots as SVG: bars for series, lines along a sweep, the tail of one-packet messages as a cumulative curve.
//! One panel for each metric, as the papers' figures have them, three in a row; whiskers are 95% confidence
//! intervals, crosses the numbers that the paper prints.

use crate::bounds::{Judged, judged};
use crate::cache;
use crate::definition::{Experiment, Kind, Metrics, Ratio, TimelineOf};
use crate::measure::{Metric, TAIL};
use crate::run::{Outcome, Part};
use adverb_sim::statistics::Estimate;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Colours that stay apart in print and for the colour-blind (Okabe and Ito): for series that `[colours]` of
/// the paper does not name.
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
/// Panels side by side: a page is as wide as three.
const ACROSS: usize = 3;
const TITLE: u32 = 34;
const LEGEND_LINE: u32 = 20;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn core::error::Error>>;

/// A panel: one metric, ratios of it, the curve of tails, or what happened over time in one series.
#[derive(Clone, Copy)]
enum Panel {
    Metric(usize),
    Ratio(usize),
    Tail,
    Timeline(usize, TimelineOf),
}

/// A number of the paper beside what was measured: from and to, which may be the same.
struct Mark {
    series: usize,
    at: usize,
    metric: usize,
    low: f64,
    high: f64,
}

/// What a plot is of.
struct Plot<'a> {
    experiment: &'a Experiment,
    outcome: &'a Outcome,
    colours: Vec<RGBColor>,
    marks: Vec<Mark>,
}

/// The plot of an experiment as the text of an SVG file.
pub fn svg(experiment: &Experiment, outcome: &Outcome) -> Result<String, crate::Error> {
    let mut text = String::new();
    let drawn = match experiment.kind {
        Kind::Cache => cache::plot::draw(experiment, outcome, &mut text),
        _ => {
            let (colours, marks) = (colours(experiment), marks(experiment, outcome));
            draw(&Plot { experiment, outcome, colours, marks }, &mut text)
        }
    };
    drawn.map_err(|e| crate::Error(format!("{}: plot: {e}", experiment.name)))?;
    Ok(text)
}

/// The panels of an experiment's plot for a page: each a heading, and the text of an SVG file without a
/// background and as wide as there is room. Those of the real cache are one.
pub fn panels_for_page(
    experiment: &Experiment,
    outcome: &Outcome,
) -> Result<Vec<(String, String)>, crate::Error> {
    if experiment.kind == Kind::Cache {
        return Ok(vec![(String::new(), svg(experiment, outcome)?)]);
    }
    let plot = &Plot { experiment, outcome, colours: colours(experiment), marks: marks(experiment, outcome) };
    let mut out = Vec::new();
    for panel in panels(experiment, outcome) {
        let mut text = String::new();
        let drawn = {
            let root = SVGBackend::with_string(&mut text, PANEL).into_drawing_area();
            draw_panel(plot, &panel, &root).and_then(|()| Ok(root.present()?))
        };
        drawn.map_err(|e| crate::Error(format!("{}: plot: {e}", experiment.name)))?;
        let heading = match panel {
            Panel::Metric(metric) => experiment.measured.label(metric).to_owned(),
            Panel::Ratio(metric) => ratio_label(experiment, metric),
            Panel::Tail => "messages of one packet".to_owned(),
            Panel::Timeline(n, of) => format!("{}, {}", experiment.series[n].name, over_time(of)),
        };
        out.push((heading, text));
    }
    Ok(out)
}

/// Series with their colours in all figures, `#rrggbb`, and whether there are numbers of the paper.
pub fn legend(experiment: &Experiment, outcome: &Outcome) -> (Vec<(String, String)>, bool) {
    let hex = |c: RGBColor| format!("#{:02x}{:02x}{:02x}", c.0, c.1, c.2);
    let names = experiment.series.iter().map(|series| series.name.clone());
    let crosses = !marks(experiment, outcome).is_empty();
    (names.zip(colours(experiment).into_iter().map(hex)).collect(), crosses)
}

fn draw_panel(plot: &Plot<'_>, panel: &Panel, area: &Area<'_>) -> Drawn {
    match panel {
        Panel::Metric(_) | Panel::Ratio(_) if plot.experiment.sweep.is_some() => lines_of(plot, *panel, area),
        Panel::Metric(_) | Panel::Ratio(_) => bars(plot, *panel, area),
        Panel::Tail => tail(plot, area),
        Panel::Timeline(n, of) => timeline(plot, *n, *of, area),
    }
}

fn draw(plot: &Plot<'_>, text: &mut String) -> Drawn {
    let Plot { experiment, outcome, colours, marks } = plot;
    let panels = panels(experiment, outcome);
    let across = panels.len().clamp(1, ACROSS);
    let rows = panels.len().div_ceil(across).max(1);
    let lines = experiment.series.len() + usize::from(!marks.is_empty());
    let legend = LEGEND_LINE * lines as u32 + 14;
    let height = PANEL.1 * rows as u32;
    let width = PANEL.0 * across as u32;
    let root = SVGBackend::with_string(text, (width.max(560), TITLE + height + legend)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE);
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    title.draw(&Text::new(format!("{}: {}", experiment.name, experiment.title), (12, 10), style))?;
    let (body, names) = rest.split_vertically(height);
    for (panel, area) in panels.iter().zip(body.split_evenly((rows, across))) {
        draw_panel(plot, panel, &area)?;
    }
    for (n, series) in experiment.series.iter().enumerate() {
        let y = n as i32 * LEGEND_LINE as i32 + 4;
        names.draw(&Rectangle::new([(16, y), (30, y + 12)], colours[n].filled()))?;
        names.draw(&Text::new(series.name.clone(), (38, y), ("sans-serif", 14).into_font()))?;
    }
    if !marks.is_empty() {
        let y = experiment.series.len() as i32 * LEGEND_LINE as i32 + 4;
        names.draw(&Cross::new((23, y + 6), 5, BLACK.stroke_width(2)))?;
        let said = "the paper's number; where that is a ratio, times what the other series has here";
        names.draw(&Text::new(said, (38, y), ("sans-serif", 14).into_font()))?;
    }
    root.present()?;
    Ok(())
}

/// The panels that have something in them.
fn panels(experiment: &Experiment, outcome: &Outcome) -> Vec<Panel> {
    let single = |m: &Metric| matches!(m, Metric::SingleP90 | Metric::SingleP99 | Metric::SingleP999);
    let tails = outcome.places == 1
        && matches!(&experiment.measured, Metrics::Simulated(metrics) if metrics.iter().any(single));
    let places = || (0..experiment.series.len()).flat_map(|n| (0..outcome.places).map(move |at| (n, at)));
    let seen = |metric: &usize| {
        let means = places().map(|(n, at)| outcome.estimate(n, at, *metric).mean);
        means.into_iter().any(|mean| mean.is_finite() && mean != 0.0)
    };
    let mut panels: Vec<Panel> = match tails {
        true => vec![Panel::Tail],
        false => (0..experiment.metrics.len()).filter(seen).map(Panel::Metric).collect(),
    };
    if !experiment.ratios.is_empty() {
        panels.extend((0..experiment.metrics.len()).filter(seen).map(Panel::Ratio));
    }
    let timed = |n: &usize| outcome.places == 1 && !outcome.runs(*n, 0)[0].timeline.is_empty();
    for of in &experiment.timeline_of {
        panels.extend((0..experiment.series.len()).filter(timed).map(|n| Panel::Timeline(n, *of)));
    }
    panels
}

/// The paper's numbers, as bounds cite them. A ratio's is where its series would be, had it that ratio.
fn marks(experiment: &Experiment, outcome: &Outcome) -> Vec<Mark> {
    let mut out = Vec::new();
    let series = |name: &str| experiment.series.iter().position(|s| s.name == name);
    for Judged { bound, metric, at, place, .. } in judged(experiment, outcome.places) {
        let Some(n) = series(&bound.ratio) else { continue };
        let cited = bound.values.get(place).map(|v| (*v, *v)).or(bound.cited.map(|c| c.ends()));
        let Some((low, high)) = cited.filter(|_| bound.minus.is_none()) else { continue };
        let there = bound.over_at.and_then(|x| {
            experiment.sweep.as_ref().and_then(|s| s.points.iter().position(|point| point.x == x))
        });
        let of = bound.over.as_deref().and_then(series);
        let times = of.map_or(1.0, |m| outcome.estimate(m, there.unwrap_or(at), metric).mean);
        if times.is_finite() {
            out.push(Mark { series: n, at, metric, low: low * times, high: high * times });
        }
    }
    out
}

/// A scheme has the same colour in all figures of its paper: that of the longest name in `[colours]` with
/// which its own begins. What is not named there has the next colour that nobody else has.
pub(crate) fn colours(experiment: &Experiment) -> Vec<RGBColor> {
    let named = |name: &str| {
        let table = &experiment.paper.as_ref()?.colours;
        let fitting = table.iter().filter(|(scheme, _)| name.starts_with(scheme.as_str()));
        fitting.max_by_key(|(scheme, _)| scheme.len()).and_then(|(_, colour)| hex(colour))
    };
    let known: Vec<Option<RGBColor>> = experiment.series.iter().map(|s| named(&s.name)).collect();
    let mut free: Vec<RGBColor> = COLOURS.into_iter().filter(|c| !known.contains(&Some(*c))).collect();
    free.extend(COLOURS);
    let mut free = free.into_iter().cycle();
    known.into_iter().map(|colour| colour.or_else(|| free.next()).unwrap_or(BLACK)).collect()
}

/// `#rrggbb`.
pub(crate) fn hex(text: &str) -> Option<RGBColor> {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6 && digits.is_ascii())?;
    let part = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    Some(RGBColor(part(0)?, part(2)?, part(4)?))
}

pub(crate) fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// The end of an axis that begins at 0 and holds all values.
pub(crate) fn top(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.1 } else { 1.0 }
}

/// The beginning of a logarithmic axis.
fn bottom(values: impl Iterator<Item = f64>) -> f64 {
    let least = values.filter(|v| v.is_finite() && *v > 0.0).fold(f64::MAX, f64::min);
    if least < f64::MAX { least * 0.8 } else { 0.1 }
}

/// Half of the confidence interval; nothing for one seed.
fn whisker(half: f64) -> f64 {
    if half.is_finite() { half } else { 0.0 }
}

/// Something that is drawn at a place of the x axis, and how it is seen: a bar or a point, with its interval.
struct Point {
    x: f64,
    mean: f64,
    half: f64,
}

/// What stands in a panel of one metric.
struct Curves {
    /// What the vertical axis is of.
    label: String,
    /// Whether that is logarithmic.
    log: bool,
    /// By series.
    points: Vec<Vec<Point>>,
    /// Numbers of the paper: where, from, to.
    marks: Vec<(f64, f64, f64)>,
    bars: bool,
    /// How wide a whisker's ends are, as shares of x: to the left and to the right.
    ends: fn(f64, f64) -> (f64, f64),
    room: f64,
}

/// What a panel has of a series at a place, over seeds: a metric, or the ratio of which the series is the
/// upper part.
fn drawn(plot: &Plot<'_>, panel: Panel, n: usize, at: usize) -> Option<Estimate> {
    let (experiment, outcome) = (plot.experiment, plot.outcome);
    match panel {
        Panel::Metric(metric) => Some(outcome.estimate(n, at, metric)),
        Panel::Ratio(metric) => {
            let Ratio { over, .. } = experiment.ratios.iter().find(|r| r.of == experiment.series[n].name)?;
            let below = experiment.series.iter().position(|s| s.name == *over)?;
            Some(Estimate::of(&outcome.ratios((n, at), (below, at), metric, Part::Whole)))
        }
        Panel::Tail | Panel::Timeline(..) => None,
    }
}

/// The vertical axis of a panel of one metric, and whether it is logarithmic.
fn axis(experiment: &Experiment, panel: Panel) -> (String, bool) {
    match panel {
        Panel::Metric(metric) => {
            let log = experiment.log.contains(&experiment.metrics[metric]);
            (experiment.measured.label(metric).to_owned(), log)
        }
        Panel::Ratio(metric) => (ratio_label(experiment, metric), false),
        Panel::Tail | Panel::Timeline(..) => (String::new(), false),
    }
}

/// A ratio has no unit.
fn ratio_label(experiment: &Experiment, metric: usize) -> String {
    let label = experiment.measured.label(metric);
    format!("ratio of {}", label.split(" (").next().unwrap_or(label))
}

fn bars(plot: &Plot<'_>, what: Panel, area: &Area<'_>) -> Drawn {
    let count = plot.experiment.series.len();
    let point = |n: usize| {
        let e = drawn(plot, what, n, 0)?;
        Some(Point { x: n as f64 + 0.5, mean: e.mean, half: whisker(e.half_width) })
    };
    let (label, log) = axis(plot.experiment, what);
    let curves = Curves {
        label,
        log,
        points: (0..count).map(|n| point(n).into_iter().collect()).collect(),
        marks: marks_of(plot, what, |mark| mark.series as f64 + 0.5),
        bars: true,
        ends: |x, room| (x - room, x + room),
        room: 0.08,
    };
    panel(plot, (0.0, count as f64), &curves, area)
}

fn lines_of(plot: &Plot<'_>, what: Panel, area: &Area<'_>) -> Drawn {
    let Some(sweep) = &plot.experiment.sweep else { return Ok(()) };
    let xs: Vec<f64> = sweep.points.iter().map(|p| p.x).collect();
    let (low, high) = xs.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let point = |n: usize, at: usize| {
        let e = drawn(plot, what, n, at)?;
        Some(Point { x: xs[at], mean: e.mean, half: whisker(e.half_width) })
    };
    let span = if high > low { high - low } else { 1.0 };
    let (label, log) = axis(plot.experiment, what);
    let curves = Curves {
        label,
        log,
        points: (0..plot.experiment.series.len())
            .map(|n| (0..xs.len()).filter_map(|at| point(n, at)).collect())
            .collect(),
        marks: marks_of(plot, what, |mark| xs[mark.at]),
        bars: false,
        ends: if sweep.log { |x, _| (x / 1.06, x * 1.06) } else { |x, room| (x - room, x + room) },
        room: span * 0.01,
    };
    let ends = if sweep.log { (low / 1.3, high * 1.3) } else { (low - span * 0.04, high + span * 0.04) };
    panel(plot, ends, &curves, area)
}

fn marks_of(plot: &Plot<'_>, panel: Panel, x: impl Fn(&Mark) -> f64) -> Vec<(f64, f64, f64)> {
    let here = plot.marks.iter().filter(|mark| matches!(panel, Panel::Metric(m) if m == mark.metric));
    here.map(|mark| (x(mark), mark.low, mark.high)).collect()
}

/// A panel with the axes that the experiment asks for.
fn panel(plot: &Plot<'_>, (low, high): (f64, f64), curves: &Curves, area: &Area<'_>) -> Drawn {
    let log_x = plot.experiment.sweep.as_ref().is_some_and(|sweep| sweep.log);
    let points = || curves.points.iter().flatten();
    let ends = points().flat_map(|p| [p.mean, p.mean + p.half]).chain(curves.marks.iter().map(|m| m.2));
    let most = top(ends);
    let least = bottom(points().map(|p| p.mean).chain(curves.marks.iter().map(|m| m.1)));
    match (log_x, curves.log) {
        (false, false) => axes(plot, (low..high, 0.0..most), (curves, 0.0), area),
        (true, false) => axes(plot, ((low..high).log_scale(), 0.0..most), (curves, 0.0), area),
        (false, true) => axes(plot, (low..high, (least..most).log_scale()), (curves, least), area),
        (true, true) => {
            axes(plot, ((low..high).log_scale(), (least..most).log_scale()), (curves, least), area)
        }
    }
}

fn axes<X, Y>(plot: &Plot<'_>, (x, y): (X, Y), (curves, floor): (&Curves, f64), area: &Area<'_>) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(if curves.bars { 14 } else { 40 })
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    mesh.y_desc(curves.label.as_str())
        .light_line_style(WHITE)
        .x_label_formatter(&number)
        .y_label_formatter(&number);
    match plot.experiment.sweep.as_ref().filter(|_| !curves.bars) {
        Some(sweep) => mesh.x_labels(6).x_desc(sweep.label.as_str()).draw()?,
        None => mesh.disable_x_mesh().disable_x_axis().draw()?,
    }
    for (n, points) in curves.points.iter().enumerate() {
        let colour = plot.colours[n];
        let seen = || points.iter().filter(|p| p.mean.is_finite() && p.mean > floor);
        if curves.bars {
            chart.draw_series(
                seen().map(|p| Rectangle::new([(p.x - 0.35, floor), (p.x + 0.35, p.mean)], colour.filled())),
            )?;
        } else {
            chart.draw_series(seen().map(|p| Circle::new((p.x, p.mean), 3, colour.filled())))?;
            let line: Vec<(f64, f64)> = seen().map(|p| (p.x, p.mean)).collect();
            chart.draw_series(core::iter::once(PathElement::new(line, colour.stroke_width(2))))?;
        }
        let ink = if curves.bars { BLACK } else { colour };
        let strokes = seen().filter(|p| p.half > 0.0).flat_map(|p| {
            let (low, high) = ((p.mean - p.half).max(floor), p.mean + p.half);
            let (left, right) = (curves.ends)(p.x, curves.room);
            [
                vec![(p.x, low), (p.x, high)],
                vec![(left, low), (right, low)],
                vec![(left, high), (right, high)],
            ]
        });
        chart.draw_series(strokes.map(|s| PathElement::new(s, ink.stroke_width(1))))?;
    }
    let marks = &curves.marks;
    let ranges = marks
        .iter()
        .filter(|m| m.2 > m.1)
        .map(|m| PathElement::new(vec![(m.0, m.1), (m.0, m.2)], BLACK.mix(0.6).stroke_width(3)));
    chart.draw_series(ranges)?;
    let ends = marks.iter().flat_map(|m| [(m.0, m.1), (m.0, m.2)]);
    chart.draw_series(ends.map(|at| Cross::new(at, 5, BLACK.stroke_width(2))))?;
    Ok(())
}

/// The vertical axis of what happened over time.
fn over_time(of: TimelineOf) -> &'static str {
    match of {
        TimelineOf::Goodput => "goodput by target (Gb/s)",
        TimelineOf::Delay => "delay of what ends well (us)",
        TimelineOf::IssueDelay => "issue delay by target (us)",
    }
}

/// What one series' first run had over time, a line for each target; all in the series' colour, further
/// targets paler.
fn timeline(plot: &Plot<'_>, n: usize, of: TimelineOf, area: &Area<'_>) -> Drawn {
    let Plot { experiment, outcome, colours, .. } = plot;
    let slices = &outcome.runs(n, 0)[0].timeline;
    let mut targets: Vec<u32> = slices.iter().map(|s| s.target).collect();
    targets.sort_unstable();
    targets.dedup();
    let end = slices.iter().map(|s| s.t_us).fold(0.0, f64::max) + f64::from(experiment.timeline_us);
    // What several initiators ask of one target counts together.
    let line = |target: u32| {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for s in slices.iter().filter(|s| s.target == target) {
            match (of, line.last_mut()) {
                (TimelineOf::Goodput, Some((t, sum))) if *t == s.t_us => *sum += s.goodput,
                (TimelineOf::Goodput, _) => line.push((s.t_us, s.goodput)),
                (TimelineOf::Delay, _) if s.well > 0 => line.push((s.t_us, s.total_us)),
                (TimelineOf::IssueDelay, _) if s.well > 0 => line.push((s.t_us, s.issue_us)),
                // Nothing ended well then.
                (TimelineOf::Delay | TimelineOf::IssueDelay, _) => {}
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
        .y_desc(over_time(of))
        .light_line_style(WHITE)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    for (at, line) in lines.into_iter().enumerate() {
        let colour = colours[n].mix(1.0 / (1.0 + at as f64));
        chart.draw_series(core::iter::once(PathElement::new(line, colour.stroke_width(2))))?;
    }
    Ok(())
}

fn tail(plot: &Plot<'_>, area: &Area<'_>) -> Drawn {
    let Plot { experiment, outcome, colours, .. } = plot;
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
        chart.draw_series(core::iter::once(PathElement::new(curve, colours[n].stroke_width(2))))?;
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
    use crate::measure::Measured;
    use crate::run::Seeds;

    /// Nobody has to learn a figure's colours anew, and no two series of one look alike.
    #[test]
    fn schemes_have_colours_of_their_own_and_the_same_in_all_figures() {
        assert_eq!(hex("#0072b2"), Some(COLOURS[0]));
        assert!(["0072b2", "#0072b", "#0072bg", "#00é72"].iter().all(|text| hex(text).is_none()));
        for name in crate::registry::names() {
            let experiment = crate::registry::find(name).unwrap_or_else(|e| panic!("{e}"));
            let all = colours(&experiment);
            assert!(all.len() == experiment.series.len(), "{name}");
            if !(name.starts_with("irn/") || name.starts_with("onerma/")) {
                continue;
            }
            let table = experiment.paper.as_ref().unwrap().colours.clone();
            for (n, colour) in all.iter().enumerate() {
                let series = &experiment.series[n].name;
                assert!(
                    all[..n].iter().all(|other| other != colour),
                    "{name}: {series} has another's colour"
                );
                let named = table.keys().any(|scheme| series.starts_with(scheme.as_str()));
                assert!(
                    named || experiment.series.len() > 1 && !series.starts_with("RoCE"),
                    "{name}: {series}"
                );
            }
        }
    }

    /// Outcomes made up: `value` of series, place and metric, a tenth more and less by seed.
    fn made_up(experiment: &Experiment, value: impl Fn(usize, usize, usize) -> f64) -> Outcome {
        let seeds = Seeds { first: 1, count: 3 };
        let mut runs = Vec::new();
        for n in 0..experiment.series.len() {
            for at in 0..experiment.places() {
                for part in [0.9, 1.0, 1.1] {
                    let values = (0..experiment.measured.len()).map(|m| part * value(n, at, m)).collect();
                    runs.push(Measured { values, ..Measured::default() });
                }
            }
        }
        Outcome::new(seeds, experiment.places(), runs)
    }

    /// The plot of a published experiment with made-up outcomes; `ADVERB_PLOTS` names a folder for them, to
    /// be looked at.
    fn plotted(name: &str, value: impl Fn(usize, usize, usize) -> f64) -> String {
        let experiment = crate::registry::find(name).unwrap_or_else(|e| panic!("{e}"));
        let text = svg(&experiment, &made_up(&experiment, value)).unwrap_or_else(|e| panic!("{e}"));
        if let Some(folder) = std::env::var_os("ADVERB_PLOTS") {
            let file = std::path::Path::new(&folder).join(name.replace('/', "-") + ".svg");
            std::fs::write(file, &text).unwrap_or_else(|e| panic!("{e}"));
        }
        text
    }

    #[test]
    fn the_papers_numbers_are_in_the_plot_and_empty_panels_are_not() {
        let crosses = "the paper&apos;s number";
        let all = plotted("irn/fig12", |n, _, m| [4.0, 0.3, 3.0][m] * (1.0 + n as f64 / 10.0));
        assert!(all.contains(crosses) && all.contains("99% FCT (ms)"), "{all}");
        // 1.04 to 1.07 of IRN without the overheads is a range: its own stroke, beside the crosses' two.
        assert!(all.matches("stroke-width=\"3\"").count() >= 6, "{all}");
        let none = plotted("irn/fig12", |_, _, m| [4.0, 0.3, 0.0][m]);
        assert!(!none.contains("99% FCT (ms)"), "a panel of zeros");
        assert!(!plotted("irn/fig1", |_, _, _| 1.0).contains(crosses), "its text has no number");
        // From 1 to 100 on a logarithmic axis, from 4 KB to 4 MB on another.
        let log = plotted("onerma/fig12", |n, at, _| if n == 0 { 1.5 } else { 10f64.powf(at as f64 / 2.0) });
        assert!(log.contains("large read (B)"), "{log}");
        let dark = plotted("onerma/fig13", |n, at, _| (1 + n * 5) as f64 + at as f64);
        assert!(dark.contains(crosses), "{dark}");
    }

    #[test]
    fn numbers_are_short() {
        let values = [0.0, 0.25, 0.001, 1.0, 12.5, 40.0, 1500.0];
        assert_eq!(values.map(|v| number(&v)), ["0", "0.25", "0.001", "1", "12.5", "40", "1500"]);
    }
}
