//! The text of the virtual machine as functions, and the ways that threads can take through a kernel.
//!
//! A call is followed: each call of a function is a copy of it, so that ways do not mix. Where that would be too much, or a
//! function calls itself, a copy is shared; a call through a pointer may be one of any function of the text. All of it errs on
//! one side: there may be ways here that no thread takes.

use std::collections::{BTreeMap, HashMap};

use super::lexer::Statement;
use super::ptx::{Instruction, tokens};

/// Instructions of a kernel with all that it calls; beyond it copies of functions are shared.
const MOST: usize = 1 << 17;

/// One instruction (or directive) of a function.
pub(super) struct Step<'a> {
    pub instruction: Instruction<'a>,
    /// The predicate that it stands behind, if any.
    pub guard: Option<&'a str>,
    /// How many calls the function has before it.
    pub calls: usize,
    /// Where it may go on, in the same function.
    next: Vec<usize>,
    /// Whether it may go on before itself.
    back: bool,
}

impl Step<'_> {
    /// Whether a loop ends here.
    pub(super) fn goes_back(&self) -> bool {
        self.back
    }
}

/// A kernel, or a function that is called.
pub(super) struct Function<'a> {
    pub name: &'a str,
    pub is_kernel: bool,
    pub parameters: Vec<&'a str>,
    pub returns: Option<&'a str>,
    pub steps: Vec<Step<'a>>,
}

/// The functions of a text, without those that are only declared.
pub(super) fn functions<'a>(statements: &[Statement<'a>]) -> Vec<Function<'a>> {
    let all = statements.chunk_by(|one, next| one.function == next.function);
    all.filter_map(|all| function(all)).collect()
}

fn function<'a>(statements: &[Statement<'a>]) -> Option<Function<'a>> {
    let (is_kernel, head) = statements.first()?.head?;
    // Without a body it is only declared.
    let head = head.trim_end().strip_suffix('{')?;
    let (returned, head) = list(head);
    let named = tokens(head).next()?;
    let (parameters, _) = list(&head[head.find(named)? + named.len()..]);
    let name = |one: &'a str| tokens(one.split('[').next().unwrap_or_default()).last();
    let names = |list: &'a str| list.split(',').filter_map(name).collect::<Vec<_>>();
    let texts = statements[1..].iter().map(|statement| statement.text);
    Some(Function {
        name: named,
        is_kernel,
        parameters: names(parameters),
        returns: names(returned).first().copied(),
        steps: steps(texts),
    })
}

/// A list in parentheses that a text begins with (nothing where there is none), and what follows it.
fn list(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.strip_prefix('(').and_then(|inside| inside.split_once(')')).unwrap_or(("", text))
}

/// A label, and the block in braces that it stands in: inline assembler may use a name in each.
struct Label<'a> {
    name: &'a str,
    scope: usize,
    step: usize,
}

fn steps<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<Step<'a>> {
    let mut steps: Vec<Step<'a>> = Vec::new();
    let mut labels: Vec<Label<'a>> = Vec::new();
    // Blocks by what is around them.
    let mut around = vec![0];
    let mut scope = 0;
    let mut scopes = Vec::new();
    let mut calls = 0;
    for text in texts {
        let mut text = text.trim_start();
        let mut guard = None;
        loop {
            if let Some(rest) = text.strip_prefix('{') {
                around.push(scope);
                scope = around.len() - 1;
                text = rest.trim_start();
            } else if let Some(rest) = text.strip_prefix('}') {
                scope = around[scope];
                text = rest.trim_start();
            } else if let Some(rest) = text.strip_prefix('@') {
                let (predicate, rest) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest, ""));
                guard = Some(predicate);
                text = rest.trim_start();
            } else {
                let label = text.split_once(':').filter(|(label, rest)| {
                    tokens(label).count() == 1
                        && tokens(label).next() == Some(label.trim_end())
                        && !rest.starts_with(':')
                });
                let Some((label, rest)) = label else { break };
                labels.push(Label { name: label.trim_end(), scope, step: steps.len() });
                text = rest.trim_start();
            }
        }
        let instruction = Instruction::of(text);
        let called = instruction.kind() == "call";
        steps.push(Step { instruction, guard, calls, next: Vec::new(), back: false });
        calls += usize::from(called);
        scopes.push(scope);
    }
    for at in 0..steps.len() {
        let step = &steps[at];
        let kind = step.instruction.kind();
        let goes_on = step.guard.is_some() || !matches!(kind, "bra" | "brx" | "ret" | "exit" | "trap");
        let mut next: Vec<usize> = (goes_on && at + 1 < steps.len()).then_some(at + 1).into_iter().collect();
        if matches!(kind, "bra" | "brx") {
            next.extend(targets(&labels, &around, scopes[at], step));
        }
        next.sort_unstable();
        next.dedup();
        steps[at].back = next.iter().any(|next| *next <= at);
        steps[at].next = next;
    }
    steps
}

/// Where a branch may go; anywhere, where that is not clear.
fn targets(labels: &[Label<'_>], around: &[usize], mut scope: usize, step: &Step<'_>) -> Vec<usize> {
    let name = step.instruction.target;
    if step.instruction.kind() == "bra" {
        loop {
            if let Some(label) = labels.iter().find(|label| label.name == name && label.scope == scope) {
                return vec![label.step];
            }
            if scope == 0 {
                break;
            }
            scope = around[scope];
        }
    }
    labels.iter().map(|label| label.step).collect()
}

/// What a call names: whom (`None`: a pointer), with what, and where what it returns goes.
pub(super) struct Call<'a> {
    pub whom: Option<&'a str>,
    pub arguments: Vec<&'a str>,
    pub returns: Option<&'a str>,
}

impl<'a> Call<'a> {
    fn of(instruction: &Instruction<'a>) -> Self {
        let (returned, rest) = list(instruction.operands);
        let mut words = tokens(rest);
        let whom = words.next().filter(|name| !name.starts_with('%'));
        let arguments = rest.split_once('(').map_or("", |(_, list)| list.split(')').next().unwrap_or_default());
        Self { whom, arguments: tokens(arguments).collect(), returns: tokens(returned).next() }
    }
}

/// An instruction of one copy of a function.
pub(super) struct Node<'f, 'a> {
    pub copy: usize,
    pub step: &'f Step<'a>,
    pub next: Vec<usize>,
}

/// A name of one copy: a register, or (with how many calls are before it) what is handed to a call or back from it.
pub(super) type Name<'a> = (usize, &'a str, usize);

/// A kernel with all that it calls.
pub(super) struct Graph<'f, 'a> {
    pub kernel: &'f Function<'a>,
    pub nodes: Vec<Node<'f, 'a>>,
    /// What goes in and out of calls: to, from.
    pub handed: Vec<(Name<'a>, Name<'a>)>,
    /// The function of each copy.
    pub copies: Vec<&'f Function<'a>>,
}

impl<'f, 'a> Graph<'f, 'a> {
    /// The ways through `kernel`, which begin at the first node.
    pub(super) fn of(kernel: &'f Function<'a>, all: &'f [Function<'a>]) -> Self {
        let graph = Self { kernel, nodes: Vec::new(), handed: Vec::new(), copies: Vec::new() };
        let mut building = Building { graph, all, starts: Vec::new(), shared: BTreeMap::new(), ends: Vec::new() };
        building.copy(kernel, &mut Vec::new());
        let Building { mut graph, starts, ends, .. } = building;
        for (copy, after) in ends {
            for at in starts[copy]..starts[copy] + graph.copies[copy].steps.len() {
                let node = &mut graph.nodes[at];
                let last = node.next.is_empty() && !matches!(node.step.instruction.kind(), "exit" | "trap" | "bra");
                if last || node.step.instruction.kind() == "ret" {
                    node.next.push(after);
                }
            }
        }
        graph
    }

    /// From which nodes these are reached, or which are reached from them, where `passes` says which may be passed. The
    /// first ones count only where a way leads back to them.
    pub(super) fn reach(&self, from: usize, ways: &[Vec<usize>], passes: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut left = vec![from];
        while let Some(node) = left.pop() {
            for next in &ways[node] {
                if !std::mem::replace(&mut reached[*next], true) && passes(*next) {
                    left.push(*next);
                }
            }
        }
        reached
    }

    /// Where each node goes on.
    pub(super) fn forward(&self) -> Vec<Vec<usize>> {
        self.nodes.iter().map(|node| node.next.clone()).collect()
    }

    /// Where each node comes from.
    pub(super) fn backward(&self) -> Vec<Vec<usize>> {
        let mut back = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for next in &node.next {
                back[*next].push(at);
            }
        }
        back
    }
}

/// What is computed from what: by copy and name the names of results. What is loaded is not computed from its address.
pub(super) fn flows<'a>(graph: &Graph<'_, 'a>) -> HashMap<(usize, &'a str), Vec<&'a str>> {
    let mut flows: HashMap<(usize, &str), Vec<&str>> = HashMap::new();
    for node in &graph.nodes {
        let instruction = &node.step.instruction;
        let (target, sources) = instruction.split();
        if matches!(instruction.kind(), "ld" | "ldu" | "call") || target.trim_start().starts_with('[') {
            continue;
        }
        for source in tokens(sources) {
            flows.entry((node.copy, source)).or_default().extend(tokens(target));
        }
    }
    flows
}

struct Building<'f, 'a> {
    graph: Graph<'f, 'a>,
    all: &'f [Function<'a>],
    /// The first node of each copy.
    starts: Vec<usize>,
    /// Copies that are shared, by name.
    shared: BTreeMap<&'a str, usize>,
    /// Copies that are called, and where each call goes on.
    ends: Vec<(usize, usize)>,
}

impl<'f, 'a> Building<'f, 'a> {
    /// Adds a copy of a function; `within` are those that are being called.
    fn copy(&mut self, function: &'f Function<'a>, within: &mut Vec<(&'a str, usize)>) -> usize {
        let (copy, start) = (self.starts.len(), self.graph.nodes.len());
        self.starts.push(start);
        self.graph.copies.push(function);
        self.graph.nodes.extend(function.steps.iter().map(|step| Node {
            copy,
            step,
            next: step.next.iter().map(|next| start + next).collect(),
        }));
        within.push((function.name, copy));
        let all = self.all;
        for (at, step) in function.steps.iter().enumerate().filter(|(_, step)| step.instruction.kind() == "call") {
            let call = Call::of(&step.instruction);
            let may_be = |other: &&'f Function<'a>| !other.is_kernel && call.whom.is_none_or(|name| name == other.name);
            let called: Vec<&'f Function<'a>> = all.iter().filter(may_be).collect();
            if called.is_empty() {
                continue;
            }
            let after = std::mem::take(&mut self.graph.nodes[start + at].next);
            if step.guard.is_some() {
                self.graph.nodes[start + at].next.clone_from(&after);
            }
            for other in called {
                let known = within.iter().find(|(name, _)| *name == other.name).map(|(_, copy)| *copy);
                let crowded = self.graph.nodes.len() > MOST || call.whom.is_none();
                let known = known.or_else(|| self.shared.get(other.name).copied().filter(|_| crowded));
                let target = known.unwrap_or_else(|| self.copy(other, within));
                if crowded {
                    self.shared.insert(other.name, target);
                }
                let first = self.starts[target];
                self.graph.nodes[start + at].next.push(first);
                self.ends.extend(after.iter().map(|after| (target, *after)));
                let number = |name: &str, calls| if name.starts_with('%') { 0 } else { calls };
                for (formal, given) in other.parameters.iter().zip(&call.arguments) {
                    self.graph.handed.push(((target, formal, 0), (copy, given, number(given, step.calls + 1))));
                }
                if let (Some(to), Some(from)) = (call.returns, other.returns) {
                    self.graph.handed.push(((copy, to, number(to, step.calls + 1)), (target, from, 0)));
                }
            }
        }
        within.pop();
        copy
    }
}
