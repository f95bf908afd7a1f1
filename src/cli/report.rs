//! `warpsmith report`: a run as a page for people.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::{settled, status};
use crate::engine::RunState;
use crate::engine::files;
use crate::history::Archive;
use crate::op::{Dtype, OpSource, Shape};
use crate::profile::CallCost;
use crate::report::{PAGE_FILE, Rendered};
use crate::workspace::Workspace;

/// Write a run as one HTML page with charts, to read in the morning and to send to a colleague.
///
/// The page is a single file: style and charts are in it, and it loads nothing. The charts also come as SVG files.
/// A run that goes on, or was interrupted, can be looked at too.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith report                     the latest run, into .warpsmith/<run>/report/\n  warpsmith report 261120a\n  warpsmith report --out ~/morning     into a folder of your own"
)]
pub(super) struct Args {
    /// Which run (the latest where not given)
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The folder to write into [default: .warpsmith/<run>/report]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (archive, run) = status::open(&args.dir, args.run)?;
    let workspace = Workspace::find(&args.dir)?.context("the workspace is gone")?;
    let rendered = render(&workspace, &archive, &run)?;
    let folder = match args.out {
        Some(folder) => folder,
        None => workspace.private_folder()?.join(&run).join("report"),
    };
    write(&folder, &rendered)?;
    let page = folder.join(PAGE_FILE);
    super::say(&format!("report   {}", page.canonicalize().unwrap_or(page).display()));
    Ok(ExitCode::SUCCESS)
}

fn render(workspace: &Workspace, archive: &Archive, run: &str) -> anyhow::Result<Rendered> {
    let state: RunState = serde_json::from_value(archive.state(run)?).with_context(|| format!("run {run}"))?;
    // A run that goes on may be an experiment further by now; what the state does not know is left for the next time.
    let mut rows = archive.experiments(run)?;
    rows.retain(|row| row.exp < state.next_experiment);
    let read = files::reader(Some(workspace));
    // The chart does without an operation whose files are gone or have changed.
    let cost = |op: &str, shape: &Shape, dtype: Dtype| {
        let op = OpSource::read(op, &read).ok()?.operation().ok()?;
        CallCost::of(&op, shape, dtype).ok()
    };
    let mut report = state.report(&rows, &cost);
    if let (Some(whole), Some(seen)) = (&mut report.whole, settled::seen(workspace, run)?) {
        report.notes.extend(seen.tell(whole));
    }
    Ok(report.render())
}

/// Writes the charts, then the page that has them.
fn write(folder: &Path, rendered: &Rendered) -> anyhow::Result<()> {
    let failed = |path: &Path| format!("{} cannot be written; `--out DIR` names another place", path.display());
    std::fs::create_dir_all(folder).with_context(|| failed(folder))?;
    let page = (PAGE_FILE.to_owned(), rendered.page.clone());
    for (name, text) in rendered.charts.iter().chain([&page]) {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| failed(&path))?;
    }
    Ok(())
}
