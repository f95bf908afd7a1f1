//! Verdicts from the script, and decisions by the judge's own rule.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warpsmith::backend::CaseLimits;
use warpsmith::backend::cpu::CASE_LIMITS;
use warpsmith::device::{Ceilings, DeviceCard, Roofline, detect_cpu, roofline};
use warpsmith::evaluation::{
    CaseResult, ErrorStats, Evaluation, Examination, ShapeTiming, Speedup, Stage, Timing, Verdict,
};
use warpsmith::forward::{CompareTask, Comparison, ForwardError, MeasureTask, Rounds};
use warpsmith::harness::{
    Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS, Decision, EvaluationTask, First, JudgeError, Margin, Outcome, Progress,
    SPREAD_SESSIONS, ScreenTask, Screened, SelfTest, SessionAnswer, SessionTask, Simplification, Watch, is_simpler,
    plan,
};
use warpsmith::kernel::KernelFile;
use warpsmith::op::{Case, Dtype, Operation, Shape, TargetShape};
use warpsmith::torch::TorchError;
use warpsmith::worker::Judging;

use crate::model;
use crate::script::{Asked, Fault, Script};

/// Answers from a script.
pub struct ScriptedJudge {
    script: Script,
    card: DeviceCard,
}

impl ScriptedJudge {
    /// A judge on this machine's processor, of which only the name is used.
    pub fn new(script: Script) -> Self {
        let facts = detect_cpu();
        let gflops = Dtype::ALL.into_iter().map(|dtype| (dtype, 100.0)).collect();
        let ceilings = Ceilings { read_gb_s: 20.0, write_gb_s: 10.0, gflops, launch_us: 2.0, shown: BTreeMap::new() };
        let card = DeviceCard {
            backend: script.backend.clone().unwrap_or_else(|| "cpu".to_owned()),
            name: facts.name,
            key: if script.own_devices { format!("{}-{}", facts.key, std::process::id()) } else { facts.key },
            cores: facts.cores,
            vector_bits: facts.vector_bits,
            l1_bytes: facts.l1_bytes,
            l2_bytes: facts.l2_bytes,
            l3_bytes: facts.l3_bytes,
            cold_bytes: facts.cold_bytes,
            facts: facts.facts,
            ceilings,
        };
        Self { script, card }
    }

    /// The script.
    pub const fn script(&self) -> &Script {
        &self.script
    }

    fn roofline(&self, op: &Operation, shape: &Shape, dtype: Dtype) -> Result<Roofline, JudgeError> {
        let (read, write) = (op.read_bytes(shape, dtype)?, op.write_bytes(shape, dtype)?);
        Ok(roofline(&self.card.back_to_back(), read as f64, write as f64, op.flops(shape)? as f64, dtype))
    }

    /// The time of a call, µs.
    pub fn call_us(&self, op: &Operation, text: &str, shape: &Shape, dtype: Dtype) -> Result<f64, JudgeError> {
        let times = self.script.times_roofline(&Asked::new(text, &op.name, Some((shape, dtype))));
        Ok(self.roofline(op, shape, dtype)?.us * times)
    }

    /// The times of a call at each shape, µs.
    fn times(&self, op: &Operation, text: &str, target: &[TargetShape]) -> Result<Vec<f64>, JudgeError> {
        target.iter().map(|wanted| self.call_us(op, text, &wanted.shape, wanted.dtype)).collect()
    }

    /// What is wrong with a kernel, at whatever shape it shows.
    fn fault(&self, op: &Operation, (text, seed): (&str, u64), target: &[TargetShape]) -> Option<Verdict> {
        let error = |why: String| Some(Verdict::Error { stage: Stage::Compile, why });
        match KernelFile::parse(text) {
            Err(why) => return error(why.to_string()),
            Ok(kernel) if kernel.front.op != op.name => {
                return error(format!("it is a kernel for {}, and {} is wanted", kernel.front.op, op.name));
            }
            Ok(_) => {}
        }
        Some(self.scripted(op, (text, seed), target)?.verdict())
    }

    /// What the script has against a kernel.
    fn scripted(&self, op: &Operation, (text, seed): (&str, u64), target: &[TargetShape]) -> Option<&Fault> {
        let at = target.iter().map(|wanted| Some((&wanted.shape, wanted.dtype))).chain([None]);
        let found =
            at.map(|at| Asked::new(text, &op.name, at).with_seed(seed)).find_map(|asked| self.script.fault(&asked));
        found.filter(|fault| fault.is_seen_by_the_judge())
    }

    /// Whatever the script has in store for whoever judges this text.
    pub fn endure(&self, op: &str, text: &str, cancelled: &AtomicBool) -> Result<(), JudgeError> {
        let ordeal = self.script.ordeal(&Asked::new(text, op, None));
        if ordeal.dies {
            std::process::abort();
        }
        if let Some(why) = ordeal.undefined {
            return Err(JudgeError::Torch(TorchError::Code(why)));
        }
        let began = Instant::now();
        let there = || ordeal.until.as_ref().is_none_or(|path| path.exists());
        while began.elapsed() < Duration::from_millis(ordeal.delay_ms) || !there() {
            go_on(cancelled)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        go_on(cancelled)
    }

    fn evaluation(&self, task: &EvaluationTask, verdict: Verdict) -> Evaluation {
        Evaluation {
            op: task.op.name.clone(),
            backend: self.card.backend.clone(),
            verdict,
            cases: Vec::new(),
            timing: None,
            vs_user: None,
            against: None,
            baselines: Vec::new(),
            seed: task.seed,
            wall_s: 0.001,
            stage_s: BTreeMap::from([(Stage::Compile, 0.0005), (Stage::Sweep, 0.0005)]),
            examination: None,
            build_log: String::new(),
        }
    }

    /// The target's shapes with every symbol.
    fn complete(op: &Operation, target: &[TargetShape]) -> Result<Vec<TargetShape>, JudgeError> {
        let complete = |wanted: &TargetShape| Ok(TargetShape { shape: op.complete(&wanted.shape)?, ..wanted.clone() });
        target.iter().map(complete).collect()
    }

    /// The times that the sessions show, as the judge summarises them.
    fn timing(
        &self,
        op: &Operation,
        target: &[TargetShape],
        decision: &Decision,
        [incumbent, candidate]: [&[f64]; 2],
    ) -> Result<Timing, JudgeError> {
        let mut shapes = Vec::new();
        for (index, wanted) in target.iter().enumerate() {
            let roofline = self.roofline(op, &wanted.shape, wanted.dtype)?;
            shapes.push(ShapeTiming {
                shape: wanted.shape.clone(),
                dtype: wanted.dtype,
                calls: wanted.calls,
                candidate_us: candidate[index],
                incumbent_us: incumbent[index],
                roofline_us: roofline.us,
                bound: roofline.bound,
            });
        }
        let total = |of: &dyn Fn(&ShapeTiming) -> f64| shapes.iter().map(|s| f64::from(s.calls) * of(s)).sum::<f64>();
        let latency_us = total(&|shape| shape.candidate_us);
        Ok(Timing {
            latency_us,
            incumbent_us: total(&|shape| shape.incumbent_us),
            roofline_pct: 100.0 * total(&|shape| shape.roofline_us) / latency_us,
            margin: decision.margin().ratio(),
            spread: decision.margin().spread(),
            rounds: 1,
            blocks: 0,
            confirmations: Vec::new(),
            condition: None,
            shapes,
        })
    }

    /// A kernel that is right beside its incumbent, or alone.
    fn time(&self, op: &Operation, task: &EvaluationTask, target: &[TargetShape]) -> Result<Timed, JudgeError> {
        let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
        let candidate = self.times(op, &task.candidate, target)?;
        let plain = Decision::new(Margin::default(), &calls);
        let alike = vec![blocks(&candidate, &candidate, CONFIRM_BLOCKS); SPREAD_SESSIONS];
        let margin = match task.precision {
            Some(known) => Margin::from_spread(known.spread),
            None => Margin::from_sessions(&plain, &alike),
        };
        let mut decision = Decision::new(margin, &calls);
        let pytorch = self.pytorch(op, task, target)?;
        let Some(text) = &task.incumbent else {
            let blocks = (SPREAD_SESSIONS * CONFIRM_BLOCKS) as u32;
            let timing = Timing { blocks, ..self.timing(op, target, &decision, [&candidate, &candidate])? };
            let Some(pytorch) = pytorch else {
                return Ok(Timed { verdict: Verdict::Base, timing, vs_user: Some(1.0), against: None });
            };
            let (beaten, _) = decide(&decision, &pytorch, &candidate);
            let verdict = if matches!(beaten, Verdict::Keep { .. }) { beaten } else { Verdict::Base };
            let vs_user = gain(&decision, &pytorch, &candidate);
            return Ok(Timed { verdict, timing, vs_user, against: Some(PYTORCH.into()) });
        };
        if let Some(fault) = self.fault(op, (text, task.seed), target) {
            return Err(JudgeError::Incumbent(fault.why().to_owned()));
        }
        let incumbent = self.times(op, text, target)?;
        if let Some(branch_over_best) = task.branch_over_best
            && is_simpler(text, &task.candidate)
        {
            decision = decision.for_simpler(Simplification { branch_over_best });
        }
        let (verdict, measured) = decide(&decision, &incumbent, &candidate);
        let mut timing = self.timing(op, target, &decision, [&incumbent, &candidate])?;
        timing.blocks = measured.first as u32;
        timing.confirmations = decision.session_speedups(&measured.sessions);
        let (vs_user, against) = match (&verdict, pytorch, &task.baseline) {
            (Verdict::Keep { .. }, Some(pytorch), _) => (gain(&decision, &pytorch, &candidate), Some(PYTORCH.into())),
            (Verdict::Keep { .. }, None, Some(baseline)) => {
                (gain(&decision, &self.times(op, baseline, target)?, &candidate), None)
            }
            _ => (None, None),
        };
        Ok(Timed { verdict, timing, vs_user, against })
    }

    /// What PyTorch takes at each shape, where the operation is written in it.
    fn pytorch(
        &self,
        op: &Operation,
        task: &EvaluationTask,
        target: &[TargetShape],
    ) -> Result<Option<Vec<f64>>, JudgeError> {
        let Some(times) = self.script.pytorch.filter(|_| !task.op.python.is_empty()) else { return Ok(None) };
        let us = |wanted: &TargetShape| Ok(times * self.roofline(op, &wanted.shape, wanted.dtype)?.us);
        target.iter().map(us).collect::<Result<_, _>>().map(Some)
    }
}

/// Whether nobody has taken the question back.
fn go_on(cancelled: &AtomicBool) -> Result<(), JudgeError> {
    if cancelled.load(Ordering::Relaxed) { Err(JudgeError::Cancelled) } else { Ok(()) }
}

/// What the fastest way of PyTorch is called.
const PYTORCH: &str = "eager, PyTorch 2";

/// What timing has to say.
struct Timed {
    verdict: Verdict,
    timing: Timing,
    vs_user: Option<f64>,
    against: Option<String>,
}

/// The time of one over that of the other, weighted as the target is.
fn gain(decision: &Decision, over: &[f64], candidate: &[f64]) -> Option<f64> {
    decision.logs(&blocks(over, candidate, 1)).first().map(|d| d.exp())
}

/// What was measured for a decision.
#[derive(Default)]
struct Measured {
    /// Blocks of the first stage.
    first: usize,
    /// The confirming sessions.
    sessions: Vec<Vec<Block>>,
}

/// So many blocks of kernels that take these times, always.
fn blocks(incumbent_us: &[f64], candidate_us: &[f64], count: usize) -> Vec<Block> {
    vec![Block { incumbent_us: incumbent_us.to_vec(), candidate_us: candidate_us.to_vec() }; count]
}

/// The keep rule over kernels that take these times.
fn decide(decision: &Decision, incumbent: &[f64], candidate: &[f64]) -> (Verdict, Measured) {
    let mut measured = Measured::default();
    loop {
        match decision.first(&blocks(incumbent, candidate, measured.first)) {
            First::More { blocks, .. } => measured.first += blocks,
            First::GiveUp { speedup, why } => return (Verdict::Revert { speedup, why }, measured),
            First::Confirm => break,
        }
    }
    measured.sessions = vec![blocks(incumbent, candidate, CONFIRM_BLOCKS); CONFIRM_SESSIONS];
    let outcome: Outcome = decision.confirm(&measured.sessions);
    (outcome.into(), measured)
}

/// The cases that the judge would have asked about, up to the stage at which the last one failed.
fn cases(
    op: &Operation,
    task: &EvaluationTask,
    target: &[TargetShape],
    failed: Option<(Stage, &str)>,
) -> Result<Vec<CaseResult>, JudgeError> {
    let errors = ErrorStats {
        elements: 64,
        worst: 0.25,
        relative_rms: 1e-7,
        tensor_ratio: 0.1,
        row_ratio: 0.1,
        ..ErrorStats::default()
    };
    let asked = |stage, case: Case, shrunk| CaseResult { stage, case, shrunk, errors: errors.clone(), failure: None };
    let mut results: Vec<CaseResult> = plan(op, target, &Dtype::ALL, task.seed, &CASE_LIMITS)?
        .into_iter()
        .map(|planned| asked(planned.stage, planned.case, planned.shrunk))
        .collect();
    let again =
        |wanted: &TargetShape| Case { shape: wanted.shape.clone(), dtype: wanted.dtype, input: None, setting: 0 };
    results.extend(target.first().map(|wanted| asked(Stage::Determinism, again(wanted), false)));
    results.sort_by_key(|result| result.stage);
    if let Some((stage, why)) = failed {
        results.retain(|result| result.stage < stage || (result.stage == stage && stage > Stage::Compile));
        if let Some(first) = results.iter().position(|result| result.stage == stage) {
            results.truncate(first + 1);
            results[first].failure = Some(why.to_owned());
        }
    }
    Ok(results)
}

impl Judging for ScriptedJudge {
    fn card(&self) -> &DeviceCard {
        &self.card
    }

    fn case_limits(&self) -> CaseLimits {
        CASE_LIMITS
    }

    fn evaluate(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let op = task.op.operation()?;
        let target = Self::complete(&op, &task.target)?;
        (watch.progress)(Progress { stage: Stage::Sweep, detail: "as the script says".to_owned() });
        self.endure(&op.name, &task.candidate, watch.cancelled)?;
        if let Some(verdict) = self.fault(&op, (&task.candidate, task.seed), &target) {
            let cases = cases(&op, task, &target, Some((verdict.stage(), verdict.why())))?;
            return Ok(Evaluation { cases, ..self.evaluation(task, verdict) });
        }
        let Timed { verdict, timing, vs_user, against } = self.time(&op, task, &target)?;
        let asked = BTreeMap::from([("large sizes".to_owned(), 3)]);
        let examined = Examination { took_s: 0.001, asked, ..Examination::default() };
        let examination = (verdict.advances() && task.examination_s > 0.0).then_some(examined);
        let cases = cases(&op, task, &target, None)?;
        Ok(Evaluation { cases, timing: Some(timing), vs_user, against, examination, ..self.evaluation(task, verdict) })
    }

    fn smoke(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let op = task.op.operation()?;
        self.endure(&op.name, &task.candidate, watch.cancelled)?;
        let early = |verdict: &Verdict| verdict.stage() <= Stage::Smoke;
        let verdict = self.fault(&op, (&task.candidate, task.seed), &[]).filter(early).unwrap_or(Verdict::Base);
        let failed = verdict.is_failure().then(|| (verdict.stage(), verdict.why()));
        let mut cases = cases(&op, task, &[], failed)?;
        cases.retain(|case| case.stage == Stage::Smoke);
        Ok(Evaluation { cases, ..self.evaluation(task, verdict) })
    }

    fn screen(&mut self, task: &ScreenTask, watch: Watch<'_>) -> Result<Vec<Option<Screened>>, JudgeError> {
        let op = task.op.operation()?;
        let target = Self::complete(&op, &task.target)?;
        let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
        let decision = Decision::new(Margin::default(), &calls);
        let incumbent = self.times(&op, &task.incumbent, &target)?;
        let mut screened = Vec::new();
        for text in &task.candidates {
            go_on(watch.cancelled)?;
            let candidate = self.times(&op, text, &target)?;
            let block = blocks(&incumbent, &candidate, 1);
            // What is only wrong at other shapes is timed as anything else.
            let fault = self.scripted(&op, (text, task.seed), &target);
            let runs = KernelFile::parse(text).is_ok() && fault.is_none_or(|fault| !fault.keeps_from_timing());
            let speedup = decision.logs(&block).first().map_or(1.0, |d| d.exp());
            screened.push(runs.then(|| Screened { speedup, shapes: decision.shape_speedups(&block) }));
        }
        Ok(screened)
    }

    fn self_test(&mut self, task: &EvaluationTask, pairs: u32, watch: Watch<'_>) -> Result<SelfTest, JudgeError> {
        let pair = EvaluationTask { incumbent: Some(task.candidate.clone()), ..task.clone() };
        let mut result = SelfTest::default();
        for _ in 0..pairs {
            let Evaluation { verdict, timing, .. } = self.evaluate(&pair, watch)?;
            result.pairs += 1;
            result.margin = timing.map_or(0.0, |timing| timing.margin);
            result.false_keeps += u32::from(matches!(verdict, Verdict::Keep { .. }));
            result.ratios.extend(verdict.speedup().map(|Speedup { ratio, .. }| ratio));
        }
        Ok(result)
    }

    fn session(&mut self, _task: &SessionTask, _watch: Watch<'_>) -> Result<SessionAnswer, JudgeError> {
        Err(JudgeError::machine("a scripted worker", "sessions are for devices whose hosts are no processes"))
    }

    fn measure(&mut self, task: &MeasureTask, cancelled: &AtomicBool) -> Result<Rounds, ForwardError> {
        model::measure(self, task, cancelled)
    }

    fn compare(&mut self, task: &CompareTask, cancelled: &AtomicBool) -> Result<Comparison, ForwardError> {
        model::compare(self, task, cancelled)
    }

    fn is_lost(&self) -> bool {
        false
    }
}
