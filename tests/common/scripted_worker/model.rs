//! Model passes whose parts take what the script says.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use warpsmith::backend::Fault;
use warpsmith::evaluation::Verdict;
use warpsmith::forward::{
    Block, CompareTask, Comparison, ForwardError, MeasureTask, ModelTask, OutputCheck, Rounds, bound, compare_outputs,
};
use warpsmith::harness::JudgeError;
use warpsmith::model::{Graph, Work};
use warpsmith::op::{OpError, Operation};

use crate::judge::ScriptedJudge;
use crate::script::{self, Asked};

/// As which operation an event's rule names a pass through the model.
const PASS: &str = "model";

/// Rounds, sessions, and blocks in a session.
const ROUNDS: usize = 5;
const SESSIONS: usize = 5;
const BLOCKS: usize = 4;

/// What a step takes that no kernel serves, µs.
const GLUE_US: f64 = 0.5;

/// A whole pass over its parts: what the parts do not explain.
const WHOLE: f64 = 1.02;

/// A model's pass with every operation that it calls.
struct Model {
    graph: Graph,
    ops: BTreeMap<String, Operation>,
}

impl Model {
    fn of(task: &ModelTask) -> Result<Self, ForwardError> {
        let graph = Graph::build(&task.config, task.pass)?;
        let mut ops = BTreeMap::new();
        for source in &task.ops {
            let op = source.operation().map_err(|error| operation(&source.name, error))?;
            ops.insert(op.name.clone(), op);
        }
        Ok(Self { graph, ops })
    }

    /// The time of each node with these kernels, µs.
    fn nodes(&self, judge: &ScriptedJudge, kernels: &BTreeMap<String, String>) -> Result<Vec<f64>, ForwardError> {
        let dtype = self.graph.pass.dtype;
        let mut times = Vec::new();
        for node in &self.graph.nodes {
            let Work::Op { op, shape, .. } = &node.work else {
                times.push(GLUE_US);
                continue;
            };
            let missing = |op: &str| ForwardError::NoKernel { site: node.site.clone(), op: op.to_owned() };
            let text = kernels.get(*op).ok_or_else(|| missing(op))?;
            let known = self.ops.get(*op).ok_or_else(|| missing(op))?;
            let shape = known.complete(shape).map_err(|error| operation(&node.site, error))?;
            let asked = Asked::new(text, op, Some((&shape, dtype)));
            if let Some(Verdict::Crash { why, .. }) = judge.script().fault(&asked).map(script::Fault::verdict) {
                let fault = Fault::Crash { what: why, signal: None, input_offset: None };
                return Err(ForwardError::Call { site: node.site.clone(), fault });
            }
            let alone_us = judge.call_us(known, text, &shape, dtype).map_err(|error| match error {
                JudgeError::Op(error) => operation(&node.site, error),
                _ => ForwardError::Cancelled,
            })?;
            times.push(alone_us * judge.script().in_model(&asked));
        }
        Ok(times)
    }

    /// Whether any of the kernels that the model calls gives wrong answers.
    fn is_wrong(&self, judge: &ScriptedJudge, kernels: &BTreeMap<String, String>) -> bool {
        let wrong = |(op, text): (&String, &String)| {
            let fault = judge.script().fault(&Asked::new(text, op, None)).map(script::Fault::verdict);
            matches!(fault, Some(Verdict::Reject { .. }))
        };
        kernels.iter().filter(|(op, _)| self.ops.contains_key(*op)).any(wrong)
    }
}

fn operation(site: &str, source: OpError) -> ForwardError {
    ForwardError::Operation { site: site.to_owned(), source: Box::new(source) }
}

fn rounds(nodes: &[f64]) -> Rounds {
    let whole = nodes.iter().sum::<f64>() * WHOLE;
    Rounds { whole_us: vec![whole; ROUNDS], node_us: vec![nodes.to_vec(); ROUNDS], launch_us: 2.0, notes: Vec::new() }
}

/// Where a model spends its time.
pub fn measure(judge: &ScriptedJudge, task: &MeasureTask, cancelled: &AtomicBool) -> Result<Rounds, ForwardError> {
    judge.endure(PASS, "", cancelled).map_err(|_| ForwardError::Cancelled)?;
    let model = Model::of(&task.model)?;
    Ok(rounds(&model.nodes(judge, &task.kernels)?))
}

/// A model with two sets of kernels.
pub fn compare(judge: &ScriptedJudge, task: &CompareTask, cancelled: &AtomicBool) -> Result<Comparison, ForwardError> {
    let changed = if task.after.is_empty() { "" } else { " changed" };
    judge
        .endure(PASS, &format!("compare {:?}{changed}", task.depth), cancelled)
        .map_err(|_| ForwardError::Cancelled)?;
    let model = Model::of(&task.model)?;
    let mut before = task.before.clone();
    before.extend(task.throughout.clone());
    let mut after = before.clone();
    after.extend(task.after.clone());
    let times = [model.nodes(judge, &before)?, model.nodes(judge, &after)?];
    let [before_rounds, after_rounds] = times.each_ref().map(|nodes| rounds(nodes));
    let block = Block { before_us: [before_rounds.whole(); 2], after_us: [after_rounds.whole(); 2] };
    let output = outputs(&model, [model.is_wrong(judge, &before), model.is_wrong(judge, &after)]);
    Ok(Comparison { output, before: before_rounds, after: after_rounds, sessions: vec![vec![block; BLOCKS]; SESSIONS] })
}

/// What two models say, of which those that are `wrong` say something else.
fn outputs(model: &Model, wrong: [bool; 2]) -> OutputCheck {
    let Graph { tensors, output, pass, nodes, .. } = &model.graph;
    let elements = tensors[*output].elements() as usize;
    let row = tensors[*output].dims.last().map_or(1, |columns| *columns as usize);
    let said = |wrong: bool| -> Vec<f64> {
        (0..elements).map(|at| (at as f64).sin() * if wrong && at % 2 == 0 { 1.5 } else { 1.0 }).collect()
    };
    compare_outputs(&said(wrong[0]), &said(wrong[1]), row, bound(pass.dtype, nodes.len()))
}
