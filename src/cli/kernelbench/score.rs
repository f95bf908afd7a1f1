//! `warpsmith kernelbench score`: fast_p of a run in both columns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use super::super::say;
use super::eval::{BASELINES, Numbers, PROTOCOL, STRICT, STRICT_CLOCK, read};
use super::number;
use crate::report::{ScoreColumn, ScorePage, ScoreRow};
use crate::torch::kernelbench::{
    Attempt, Baselines, Mode, ProtocolResult, Results, Score, StrictResult, THRESHOLDS, TimeStats,
};

/// The page beside the results.
const PAGE: &str = "score.html";

/// Score a run that was judged: fast_p against eager, torch.compile and max-autotune, in both columns
///
/// All problems of the level count, those without a sample too, unless --problems chooses. Times of the problems themselves are read in
/// the benchmark's form; the benchmark's own files, or those of another machine, can be put in their place.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder that `eval` wrote its results into
    #[arg(value_name = "RUN_DIR")]
    run: PathBuf,
    /// The level
    #[arg(long, value_name = "N", default_value_t = 1)]
    level: u32,
    /// Only these problems: 1-20, or 3,7,19
    #[arg(long, value_name = "NUMBERS")]
    problems: Option<Numbers>,
    /// Which sample of each problem
    #[arg(long, value_name = "N", default_value_t = 0)]
    sample: u32,
    /// The folder with baseline_time_torch.json and the others [default: RUN_DIR/baselines]
    #[arg(long, value_name = "DIR")]
    baselines: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A way to judge and to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    Protocol,
    Strict,
}

impl Judge {
    const fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Strict => "strict",
        }
    }
}

/// A judge against a mode.
struct Column {
    judge: Judge,
    mode: Mode,
    /// Whether anything was timed in that mode.
    known: bool,
    score: Score,
    /// Of each problem.
    speedups: Vec<Option<f64>>,
}

/// What there is of a run.
struct Run {
    protocol: BTreeMap<u32, ProtocolResult>,
    strict: BTreeMap<u32, StrictResult>,
    baselines: PathBuf,
    level: String,
}

pub(super) fn main(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let files = super::chosen(root, args.level, args.problems.as_ref())?;
    let run = Run::read(args)?;
    let mut columns = Vec::new();
    for judge in [Judge::Protocol, Judge::Strict] {
        for mode in Mode::ALL {
            columns.push(run.column(judge, mode, &files)?);
        }
    }
    if args.json {
        say(&serde_json::to_string_pretty(&columns.iter().map(Column::as_json).collect::<Value>())?);
        return Ok(ExitCode::SUCCESS);
    }
    table(&columns);
    let page = ScorePage {
        run: args.run.canonicalize()?.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        level: args.level,
        hardware: run.hardware()?,
        thresholds: THRESHOLDS.to_vec(),
        columns: columns.iter().map(Column::shown).collect(),
        rows: files
            .iter()
            .enumerate()
            .map(|(at, path)| run.row(path, columns.iter().map(|it| it.speedups[at])))
            .collect(),
    };
    let path = args.run.join(PAGE);
    std::fs::write(&path, page.render()).with_context(|| format!("{} cannot be written", path.display()))?;
    say(&format!("\npage   {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

impl Run {
    fn read(args: &Args) -> anyhow::Result<Self> {
        let protocol: Results<ProtocolResult> = read(&args.run.join(PROTOCOL))?;
        let strict: Results<StrictResult> = read(&args.run.join(STRICT))?;
        if protocol.is_empty() {
            bail!("{} has no {PROTOCOL}; `warpsmith kernelbench eval` writes it", args.run.display());
        }
        let protocol = chosen(protocol, |it| it.sample_id == args.sample);
        let strict = chosen(strict, |it| it.sample_id == args.sample);
        let baselines = args.baselines.clone().unwrap_or_else(|| args.run.join(BASELINES));
        Ok(Self { protocol, strict, baselines, level: format!("level{}", args.level) })
    }

    /// Whether a problem is right, and its time in ms.
    fn found(&self, judge: Judge, problem: u32) -> Option<(bool, f64)> {
        match judge {
            Judge::Protocol => self.protocol.get(&problem).map(|it| (it.correctness, it.runtime)),
            Judge::Strict => self.strict.get(&problem).map(|it| (it.correctness, it.runtime)),
        }
    }

    fn column(&self, judge: Judge, mode: Mode, files: &[PathBuf]) -> anyhow::Result<Column> {
        // The strict clock's times lie in a folder of their own; where there are none the others stand in.
        let strict = self.baselines.join(STRICT_CLOCK).join(mode.file());
        let own = judge == Judge::Strict && strict.exists();
        let mut all: Baselines = read(&if own { strict } else { self.baselines.join(mode.file()) })?;
        let times = all.remove(&self.level).unwrap_or_default();
        let attempt = |path: &PathBuf| {
            let known = times.get(&*path.file_name().unwrap_or_default().to_string_lossy());
            let (right, time) = self.found(judge, number(path)).unwrap_or((false, -1.0));
            // What the strict clock cannot tell from nothing is no ratio.
            let told = judge == Judge::Protocol || self.strict.get(&number(path)).is_some_and(|it| !it.unresolved);
            let base = known.and_then(Option::as_ref).filter(|_| told);
            Attempt { right, times: base.map(|base| (time, TimeStats::typical(base))) }
        };
        let attempts: Vec<Attempt> = files.iter().map(attempt).collect();
        let speedups = attempts.iter().map(Attempt::speedup).collect();
        Ok(Column { judge, mode, known: times.values().any(Option::is_some), score: Score::of(&attempts), speedups })
    }

    fn row(&self, path: &Path, speedups: impl Iterator<Item = Option<f64>>) -> ScoreRow {
        let problem = number(path);
        let both = [Judge::Protocol, Judge::Strict].map(|judge| self.found(judge, problem));
        let strict = self.strict.get(&problem);
        ScoreRow {
            problem: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            protocol: both[0].map(|(right, _)| right),
            strict: both[1].map(|(right, _)| right),
            times: both.map(|found| found.map(|(_, ms)| ms).filter(|ms| *ms > 0.0)),
            speedups: speedups.collect(),
            said: strict.and_then(|it| it.differs.clone().or_else(|| it.reason.clone())).unwrap_or_default(),
        }
    }

    /// What the problems were timed on.
    fn hardware(&self) -> anyhow::Result<String> {
        let times: Baselines = read(&self.baselines.join(Mode::Eager.file()))?;
        let first = times.into_values().flat_map(BTreeMap::into_values).flatten().next();
        Ok(first.map_or_else(|| "an unknown device".to_owned(), |it| it.hardware))
    }
}

/// The sample of each problem that is scored.
fn chosen<T>(results: Results<T>, is: impl Fn(&T) -> bool) -> BTreeMap<u32, T> {
    let one = |(problem, samples): (u32, Vec<T>)| Some((problem, samples.into_iter().find(|it| is(it))?));
    results.into_iter().filter_map(one).collect()
}

impl Column {
    fn shown(&self) -> ScoreColumn {
        ScoreColumn {
            judge: self.judge.name().to_owned(),
            against: self.mode.name().to_owned(),
            right: self.score.right,
            problems: self.score.problems,
            fast: self.known.then(|| self.score.fast.to_vec()),
            geometric_mean: self.score.geometric_mean,
        }
    }

    fn as_json(&self) -> Value {
        let Score { problems, right, timed, fast, geometric_mean } = &self.score;
        let fast = THRESHOLDS.iter().zip(fast).map(|(p, share)| (format!("{p:.1}"), (*share).into()));
        let fast: Map<String, Value> = fast.collect();
        json!({
            "judge": self.judge.name(), "against": self.mode.name(), "problems": problems, "right": right, "timed": timed,
            "fast_p": self.known.then_some(fast), "geometric_mean_speedup": geometric_mean,
        })
    }
}

fn table(columns: &[Column]) {
    let cells = |texts: Vec<String>| texts.iter().map(|text| format!("{text:>9}")).collect::<String>();
    let heads = cells(THRESHOLDS.iter().map(|p| format!("fast_{p}")).collect());
    say(&format!("{:<9} {:<13} {:>9} {heads}  geomean", "judge", "against", "right"));
    for Column { judge, mode, known, score, .. } in columns {
        let right = format!("{}/{}", score.right, score.problems);
        let fast = score.fast.iter().map(|share| if *known { format!("{share:.3}") } else { "-".to_owned() });
        let mean = score.geometric_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.3}×"));
        say(&format!("{:<9} {:<13} {right:>9} {}  {mean}", judge.name(), mode.name(), cells(fast.collect())));
    }
}
