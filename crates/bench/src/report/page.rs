//! Fills the templates. A page of HTML carries its style, its script and the libraries that draw its charts.

use super::ReportError;
use super::view::View;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, escape_formatter};

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");
const TEMPLATE: &str = include_str!("report.html");
const MARKDOWN: &str = include_str!("report.md");

/// A library of the page with the licences of what is in it.
pub(super) struct Library {
    licences: &'static [&'static str],
    pub(super) code: &'static str,
}

/// In the order in which they are loaded.
pub(super) const LIBRARIES: [Library; 2] = [
    Library {
        licences: &[
            include_str!("../../assets/chart.js.LICENSE.md"),
            include_str!("../../assets/kurkle-color.LICENSE.md"),
        ],
        code: include_str!("../../assets/chart.umd.min.js"),
    },
    Library {
        licences: &[include_str!("../../assets/chartjs-plugin-zoom.LICENSE.md")],
        code: include_str!("../../assets/chartjs-plugin-zoom.min.js"),
    },
];

impl Library {
    /// Licences and code as a script, without the line that names a file of debugging information.
    pub(super) fn script(&self) -> String {
        let code = self.code.lines().filter(|line| !line.starts_with("//# sourceMappingURL="));
        let code: Vec<&str> = code.collect();
        format!("/*!\n{}\n*/\n{}\n", self.licences.join("\n"), code.join("\n"))
    }
}

pub(super) fn html(view: &View) -> Result<String, ReportError> {
    let mut environment = environment()?;
    let safe = Value::from_safe_string;
    environment.add_global("style", safe(STYLE.to_owned()));
    environment.add_global("script", safe(SCRIPT.to_owned()));
    environment.add_global("libraries", LIBRARIES.iter().map(|library| safe(library.script())).collect::<Value>());
    Ok(environment.render_named_str("report.html", TEMPLATE, Serde(view))?)
}

pub(super) fn markdown(view: &View) -> Result<String, ReportError> {
    Ok(environment()?.render_named_str("report.md", MARKDOWN, Serde(view))?)
}

/// Values of Markdown, which may stand in cells of tables: `|` is escaped.
const CELLS: &str = "cells";

fn environment() -> Result<Environment<'static>, ReportError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build()?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|name| match name.ends_with(".html") {
        true => AutoEscape::Html,
        false => AutoEscape::Custom(CELLS.into()),
    });
    environment.set_formatter(|out, state, value| match state.auto_escape() {
        AutoEscape::Custom(_) => Ok(out.write_str(&value.to_string().replace('|', "\\|"))?),
        _ => escape_formatter(out, state, value),
    });
    Ok(environment)
}
