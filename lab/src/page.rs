//! One static page of experiments that were run: of each its plot, what was measured, its bounds beside the
//! paper's values with their verdicts, and the command that repeats it. No script, no other file that it
//! needs; light or dark as its reader has it, and as narrow as a phone.

use crate::bounds::{Checked, Relation, Verdict};
use crate::definition::{Bound, Experiment, Kind};
use crate::plot;
use crate::report;
use crate::run::Outcome;
use crate::verdicts::Counts;
use core::fmt::{Display, Write};

const STYLE: &str = include_str!("page.css");

/// An experiment's part of the page.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name.
    name: String,
    title: String,
    /// The paper, as it is cited.
    cite: String,
    counts: Counts,
    /// Flows did not end that must.
    stranded: bool,
    html: String,
}

/// How an experiment was run, for its reader.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// The command that repeats it.
    pub command: String,
    /// Files beside the page, in the experiment's folder.
    pub files: Vec<String>,
}

/// Text between tags, and in attributes.
fn escape(text: impl Display) -> String {
    let text = text.to_string();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A name as a place of the page.
fn anchor(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Writing to a `String` cannot fail.
macro_rules! put {
    ($out:expr, $($part:tt)*) => { let _ = write!($out, $($part)*); };
}

/// The part of an experiment that was run.
pub fn section(
    experiment: &Experiment,
    outcome: &Outcome,
    checked: &[Checked<'_>],
    how: &How,
) -> Result<Section, crate::Error> {
    let counts = Counts::of(checked);
    let stranded = !experiment.may_fail && outcome.unfinished().0 > 0;
    let mut out = head(experiment, counts, stranded, how);
    plots(&mut out, experiment, outcome)?;
    bounds(&mut out, experiment, checked);
    let values = table(&values(experiment, outcome), if experiment.sweep.is_some() { 2 } else { 1 });
    put!(out, "<details><summary>What was measured</summary>{values}</details>\n");
    notes(&mut out, experiment);
    let mut measured = report::measured(experiment, outcome);
    if let Some(reason) = outcome.reason() {
        put!(measured, "a lookup was not answered: {reason}");
    }
    for line in measured.lines() {
        put!(out, "<p class=\"soft\">{}</p>\n", escape(line));
    }
    out.push_str("</section>\n");
    Ok(Section::new(experiment, counts, stranded, out))
}

/// The part of an experiment that has a text only, such as the times of modules.
pub fn text_section(experiment: &Experiment, text: &str, how: &How) -> Section {
    let counts = Counts::declared(experiment);
    let mut out = head(experiment, counts, false, how);
    put!(out, "<pre>{}</pre>\n", escape(text.trim_end()));
    notes(&mut out, experiment);
    out.push_str("</section>\n");
    Section::new(experiment, counts, false, out)
}

impl Section {
    fn new(experiment: &Experiment, counts: Counts, stranded: bool, html: String) -> Section {
        let cite = experiment.paper.as_ref().map_or(String::new(), |paper| paper.cite.clone());
        let (name, title) = (experiment.name.clone(), experiment.title.clone());
        Section { name, title, cite, counts, stranded, html }
    }
}

/// How an experiment stands, in a few words, with the colour that goes with them.
fn standing(counts: Counts, stranded: bool) -> String {
    let (class, said) = match counts {
        Counts { fails, .. } if fails > 0 || stranded => ("bad", format!("{fails} FAIL")),
        Counts { differs, .. } if differs > 0 => {
            ("other", format!("{} hold, {differs} differ", counts.hold()))
        }
        _ if counts.hold() > 0 => ("good", format!("{} hold", counts.hold())),
        _ => ("soft", "reports".to_owned()),
    };
    let stranded = if stranded { ", flows did not end" } else { "" };
    format!("<span class=\"tag {class}\">{said}{stranded}</span>")
}

fn head(experiment: &Experiment, counts: Counts, stranded: bool, how: &How) -> String {
    let mut out = String::new();
    put!(out, "<section id=\"{}\">\n", anchor(&experiment.name));
    put!(out, "<h3>{} {}</h3>\n", escape(&experiment.name), standing(counts, stranded));
    put!(out, "<p>{}</p>\n", escape(&experiment.title));
    put!(out, "<p class=\"soft\">{}</p>\n", escape(experiment.cite()));
    put!(out, "<pre><code>{}</code></pre>\n", escape(&how.command));
    if !how.files.is_empty() {
        let link =
            |file: &String| format!("<a href=\"{0}/{1}\">{1}</a>", escape(&experiment.name), escape(file));
        let links: Vec<String> = how.files.iter().map(link).collect();
        put!(out, "<p class=\"soft\">{}</p>\n", links.join(", "));
    }
    out
}

fn plots(out: &mut String, experiment: &Experiment, outcome: &Outcome) -> Result<(), crate::Error> {
    let panels = plot::panels_for_page(experiment, outcome)?;
    let one = if experiment.kind == Kind::Cache { " one" } else { "" };
    put!(out, "<div class=\"plots{one}\">\n");
    for (heading, svg) in panels {
        let label = if heading.is_empty() { experiment.title.as_str() } else { heading.as_str() };
        // White lines of the finest grid would be seen on another paper.
        let svg = svg.replace("stroke=\"#FFFFFF\"", "stroke=\"none\"");
        let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(label)), 1);
        put!(out, "<figure><figcaption>{}</figcaption>\n{svg}</figure>\n", escape(&heading));
    }
    out.push_str("</div>\n");
    if experiment.kind == Kind::Cache {
        return Ok(());
    }
    let (names, crosses) = plot::legend(experiment, outcome);
    out.push_str("<ul class=\"legend\">");
    for (name, colour) in names {
        put!(out, "<li><i style=\"background:{colour}\"></i>{}</li>", escape(name));
    }
    if crosses {
        out.push_str(CROSSES);
    }
    out.push_str("</ul>\n");
    Ok(())
}

/// Rows as a table that scrolls where it is too wide; the first row is the heading, the first `left` cells of
/// each are text.
fn table(rows: &[Vec<String>], left: usize) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n");
    for (n, row) in rows.iter().enumerate() {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let tag = if n == 0 { "th" } else { "td" };
            let class = if at < left { "" } else { " class=\"n\"" };
            put!(out, "<{tag}{class}>{}</{tag}>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out + "</table></div>\n"
}

fn values(experiment: &Experiment, outcome: &Outcome) -> Vec<Vec<String>> {
    let metrics = 0..experiment.measured.len();
    let mut head = vec!["series".to_owned()];
    head.extend(experiment.sweep.as_ref().map(|sweep| sweep.label.clone()));
    head.extend(metrics.clone().map(|metric| experiment.measured.label(metric).to_owned()));
    let mut rows = vec![head];
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let mut row = vec![if at == 0 { series.name.clone() } else { String::new() }];
            row.extend(experiment.sweep.as_ref().map(|sweep| sweep.points[at].x.to_string()));
            row.extend(metrics.clone().map(|metric| report::value(outcome, (n, at), metric)));
            rows.push(row);
        }
    }
    rows
}

/// What a bound asks for, and what the paper has: a row above those of its points.
fn asked(bound: &Bound, relation: Relation) -> (String, String) {
    let place = bound.over_at.map_or(String::new(), |x| format!(" at {x}"));
    let over = bound.over.as_ref().map(|over| format!(" / {over}{place}"));
    let over = over.or(bound.minus.as_ref().map(|minus| format!(" - {minus}"))).unwrap_or_default();
    let relation = match (bound.values.is_empty(), bound.within) {
        (true, _) => relation.to_string(),
        (false, None) => "beside the paper's values".to_owned(),
        (false, Some(share)) => format!("within {:.0}% of the paper's values", share * 100.0),
    };
    let cited = bound.cited.map(|cited| match cited.ends() {
        (low, high) if low < high => format!("{low} to {high}"),
        (low, _) => low.to_string(),
    });
    let mut paper = [cited.unwrap_or_default(), bound.paper.clone()];
    paper.iter_mut().for_each(|part| *part = escape(&part));
    let mut paper: Vec<String> = paper.into_iter().filter(|part| !part.is_empty()).collect();
    if !bound.source.is_empty() {
        paper.push(format!("<span class=\"soft\">[{}]</span>", escape(&bound.source)));
    }
    (format!("<b>{}{}</b>: {}", escape(&bound.ratio), escape(over), escape(relation)), paper.join("; "))
}

fn bounds(out: &mut String, experiment: &Experiment, checked: &[Checked<'_>]) {
    if checked.is_empty() {
        return;
    }
    out.push_str("<div class=\"wide\"><table>\n<tr><th>what is asked</th><th>the paper</th>");
    out.push_str("<th class=\"n\">ours</th><th>verdict</th></tr>\n");
    let mut last = None;
    for c in checked {
        let this = core::ptr::from_ref(c.bound);
        if last != Some(this) {
            let (what, paper) = asked(c.bound, c.relation);
            put!(
                out,
                "<tr class=\"head\"><td class=\"what\">{what}</td><td colspan=\"3\">{paper}</td></tr>\n"
            );
            if let Some(why) = &c.bound.differs {
                put!(
                    out,
                    "<tr class=\"head\"><td></td><td colspan=\"3\">differs: {}</td></tr>\n",
                    escape(why)
                );
            }
            last = Some(this);
        }
        let place = c.x.map_or(String::new(), |x| format!(" at {x}"));
        let label = format!("{}{place}", experiment.measured.label(c.metric));
        let (ours, value) = match c.relation {
            Relation::Near(value, _) => {
                let off = (c.ratio.mean / value - 1.0) * 100.0;
                (format!("{:.3} ({off:+.1}%)", c.ratio), value.to_string())
            }
            _ => (format!("{:.2}", c.ratio), String::new()),
        };
        let class = match c.verdict() {
            Verdict::Holds(_) => "good",
            Verdict::Reports => "soft",
            Verdict::Differs => "other",
            Verdict::Fails(_) => "bad",
        };
        put!(out, "<tr><td class=\"what\">{}</td><td>{value}</td><td class=\"n\">{ours}</td>", escape(label));
        put!(out, "<td><span class=\"tag {class}\">{}</span></td></tr>\n", escape(c.verdict()));
    }
    out.push_str("</table></div>\n");
}

fn notes(out: &mut String, experiment: &Experiment) {
    for note in &experiment.notes {
        put!(out, "<p>{}</p>\n", escape(note));
    }
}

/// The page. `about` says in a line what was run, and by which program.
pub fn page(sections: &[Section], about: &str) -> String {
    let mut papers: Vec<(&str, &str, Vec<&Section>)> = Vec::new();
    for section in sections {
        let paper = section.name.split('/').next().unwrap_or_default();
        match papers.iter_mut().find(|(name, ..)| *name == paper) {
            Some((.., of)) => of.push(section),
            None => papers.push((paper, &section.cite, vec![section])),
        }
    }
    let mut out = String::from("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    put!(out, "<title>adverb lab: {} experiments</title>\n<style>\n{STYLE}</style>\n", sections.len());
    let mut all = Counts::default();
    sections.iter().for_each(|section| all += section.counts);
    put!(out, "<h1>adverb lab</h1>\n<p>{}</p>\n", escape(about));
    put!(out, "<p>{} experiments: {}</p>\n", sections.len(), escape(all));
    out.push_str(&summary(&papers));
    out.push_str(WORDS);
    out.push_str("<nav>\n");
    for (name, _, of) in &papers {
        put!(out, "<p><b>{}</b></p>\n<ul>\n", escape(name));
        for Section { name, title, counts, stranded, .. } in of {
            let standing = standing(*counts, *stranded);
            let (to, name) = (anchor(name), escape(name));
            put!(out, "<li><a href=\"#{to}\">{name}</a> {} {standing}</li>\n", escape(title));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</nav>\n");
    for (name, cite, of) in &papers {
        put!(out, "<h2 id=\"paper-{}\">{}</h2>\n", anchor(name), escape(cite));
        of.iter().for_each(|section| out.push_str(&section.html));
    }
    out + "</html>\n"
}

/// What crosses in plots are.
const CROSSES: &str =
    "<li>&times; the paper's number; where that is a ratio, times what the other series has</li>";

/// What verdicts mean.
const WORDS: &str = "<details><summary>What the words mean</summary>\n<p>Values are means over seeds with a \
95% confidence interval. <b>faithful</b>: a number that the paper's text prints is within our interval. \
<b>direction</b>: which is larger, or where a curve bends. <b>fitted</b>: a parameter of ours was chosen by \
this very figure. <b>reports</b>: nothing is claimed. <b>differs</b>: it is known not to hold, and why is \
said. <b>FAILS</b>: it is claimed to hold, and does not.</p></details>\n";

fn summary(papers: &[(&str, &str, Vec<&Section>)]) -> String {
    let head = ["paper", "faithful", "direction", "fitted", "report", "differ", "fail"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, _, of) in papers {
        let mut counts = Counts::default();
        of.iter().for_each(|section| counts += section.counts);
        let Counts { faithful, direction, fitted, reports, differs, fails } = counts;
        let cells = [faithful, direction, fitted, reports, differs, fails].map(|n| n.to_string());
        rows.push(core::iter::once((*name).to_owned()).chain(cells).collect());
    }
    table(&rows, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_cannot_become_a_tag() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
        assert_eq!(anchor("irn/fig9-cross"), "irn-fig9-cross");
        let text = "title = \"<script>\"\nfigure = \"<b>\"\nkind = \"modules\"\nnotes = [\"<i>\"]";
        let experiment = Experiment::parse("own/one", text, "cite = \"<u>\"\n[scenario]\n").unwrap();
        let how = How { command: "adverb lab run '<x>'".to_owned(), files: vec!["<y>".to_owned()] };
        let page = page(&[text_section(&experiment, "<z>", &how)], "<v>");
        for tag in ["<script>", "<b>&lt;", "<i>", "<u>", "<x>", "<y>", "<z>", "<v>"] {
            assert!(!page.contains(tag), "{tag}: {page}");
        }
        assert!(page.contains("&lt;script&gt;") && page.contains("1 experiments: 0 hold"), "{page}");
    }
}
