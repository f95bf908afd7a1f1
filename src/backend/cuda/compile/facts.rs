//! What is known of the values in a kernel: which parameters an address comes from, and what a condition depends on.

use std::collections::{BTreeSet, HashMap};
use std::ops::{BitAnd, BitOr};

use super::flow::{Graph, Name};
use super::ptx::{Instruction, tokens};

/// Parameters that are told apart; those after them are one.
const TOLD_APART: usize = 112;

/// A set of what a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Origin(u128);

impl Origin {
    /// Memory of the block's or the thread's own.
    const INNER: Self = Self(1 << 112);
    /// The thread's number in its block.
    const THREAD: Self = Self(1 << 113);
    /// The block's number.
    const BLOCK: Self = Self(1 << 114);
    /// Arguments and memory.
    const DATA: Self = Self(1 << 115);
    /// An address that is nobody's.
    const NOBODY: Self = Self(1 << 116);
    /// The block's number in its cluster.
    const RANK: Self = Self(1 << 117);
    /// What a condition may depend on.
    const TELLING: Self = Self(Self::THREAD.0 | Self::BLOCK.0 | Self::RANK.0 | Self::DATA.0);
    /// Every parameter.
    pub(super) const PARAMETERS: Self = Self((1 << TOLD_APART) - 1);

    /// The parameter at this place.
    pub(super) fn parameter(place: usize) -> Self {
        Self(1 << place.min(TOLD_APART - 1))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn meets(self, other: Self) -> bool {
        !(self & other).is_empty()
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The places of parameters.
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        (0..TOLD_APART).filter(move |place| self.meets(Self::parameter(*place)))
    }
}

impl BitOr for Origin {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Origin {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What a condition tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Threads of a block, by nothing but their number.
    Threads,
    /// Blocks of a cluster, or threads of it, by nothing but their numbers there.
    Cluster,
    /// Threads or blocks, by their numbers among other things.
    Numbers,
    /// Launches.
    Launches,
}

/// What is known of a kernel's values.
pub(super) struct Facts<'a> {
    known: HashMap<Name<'a>, Origin>,
}

impl<'a> Facts<'a> {
    /// The facts of a kernel of which some arguments are numbers.
    pub(super) fn of(graph: &Graph<'_, 'a>, numbers_at: Option<&BTreeSet<usize>>) -> Self {
        Self::known(graph, numbers_at, false)
    }

    /// The same, where what is computed in 32 bits is no address: how far another buffer is from its next aligned piece, say.
    pub(super) fn of_whole_addresses(graph: &Graph<'_, 'a>, numbers_at: Option<&BTreeSet<usize>>) -> Self {
        Self::known(graph, numbers_at, true)
    }

    fn known(graph: &Graph<'_, 'a>, numbers_at: Option<&BTreeSet<usize>>, whole: bool) -> Self {
        let mut numbers: HashMap<Name<'a>, usize> = HashMap::new();
        let mut number = |name: Name<'a>| {
            let new = numbers.len();
            *numbers.entry(name).or_insert(new)
        };
        // To, from, and what of it goes that way.
        let mut moves: Vec<(Vec<usize>, Vec<usize>, Origin)> = Vec::new();
        let mut seeds: Vec<(usize, Origin)> = Vec::new();
        for (place, name) in graph.kernel.parameters.iter().enumerate() {
            let is_number = numbers_at.is_some_and(|numbers| numbers.contains(&place));
            let address = if is_number { Origin::default() } else { Origin::parameter(place) };
            seeds.push((number((0, name, 0)), address | Origin::DATA));
        }
        for (to, from) in &graph.handed {
            moves.push((vec![number(*to)], vec![number(*from)], Origin(u128::MAX)));
        }
        // All that is put into memory anywhere, as one name.
        let memory = number((usize::MAX, "", 0));
        for node in &graph.nodes {
            let instruction = &node.step.instruction;
            let function = graph.copies[node.copy];
            // What is handed to the next call or back from the last one has its number; all else is the function's own.
            let own = |name: &'a str| {
                let called =
                    !name.starts_with('%') && !function.parameters.contains(&name) && function.returns != Some(name);
                match instruction.kind() {
                    "st" if called && instruction.in_space("param") => (node.copy, name, node.step.calls + 1),
                    "ld" if called && instruction.in_space("param") => (node.copy, name, node.step.calls),
                    _ => (node.copy, name, 0),
                }
            };
            let (target, sources) = instruction.split();
            seeds.extend(tokens(sources).map(|name| (number(own(name)), register(name))));
            if matches!(instruction.kind(), "ld" | "st") && instruction.in_space("param") {
                let to: Vec<usize> = tokens(target).map(|name| number(own(name))).collect();
                let from = tokens(sources).chain(node.step.guard.into_iter().flat_map(tokens));
                moves.push((to, from.map(|name| number(own(name))).collect(), Origin(u128::MAX)));
                continue;
            }
            let (values, addresses) = apart(sources);
            let mut numbered = |text: &mut dyn Iterator<Item = &'a str>| -> Vec<usize> {
                text.flat_map(tokens).map(|name| number(own(name))).collect()
            };
            let (values, addresses) = (numbered(&mut values.into_iter()), numbered(&mut addresses.into_iter()));
            let guard = numbered(&mut node.step.guard.into_iter());
            // An address may be put into memory and come back.
            if target.trim_start().starts_with('[') {
                moves.push((vec![memory], values, Origin::PARAMETERS));
                continue;
            }
            let to = numbered(&mut std::iter::once(target));
            let given = given(instruction);
            seeds.extend(to.iter().map(|to| (*to, given)));
            moves.push((
                to.clone(),
                vec![memory],
                if addresses.is_empty() { Origin::default() } else { Origin::PARAMETERS },
            ));
            match instruction.kind() {
                "ld" | "ldu" | "call" => {}
                "atom" => moves.push((vec![memory], values, Origin::PARAMETERS)),
                _ => {
                    let goes = if is_no_address(instruction) || whole && is_narrow(instruction) {
                        Origin::TELLING
                    } else {
                        Origin(u128::MAX)
                    };
                    moves.push((to.clone(), values, goes));
                    moves.push((to, [addresses, guard].concat(), Origin::TELLING));
                }
            }
        }
        let mut known = vec![Origin::default(); numbers.len()];
        for (name, seed) in seeds {
            known[name] = known[name] | seed;
        }
        loop {
            let mut grown = false;
            for (to, from, goes) in &moves {
                let all = from.iter().fold(Origin::default(), |all, from| all | known[*from]) & *goes;
                for to in to {
                    let before = known[*to];
                    known[*to] = before | all;
                    grown |= known[*to] != before;
                }
            }
            if !grown {
                break;
            }
        }
        Self { known: numbers.into_iter().map(|(name, number)| (name, known[number])).collect() }
    }

    fn of_text(&self, copy: usize, text: &'a str) -> Origin {
        let known = tokens(text).filter_map(|name| self.known.get(&(copy, name, 0)));
        known.fold(Origin::default(), |all, one| all | *one)
    }

    /// The parameters that an address in brackets comes from, where it is in the device's memory.
    fn address(&self, copy: usize, text: &'a str) -> Origin {
        let all = self.of_text(copy, text);
        let parameters = all & Origin::PARAMETERS;
        if parameters.is_empty() && !all.meets(Origin::INNER) { Origin::NOBODY } else { parameters }
    }

    /// The parameters through which an instruction stores; all, where nobody knows.
    pub(super) fn stored(&self, copy: usize, instruction: &Instruction<'a>) -> Origin {
        known_or_all(self.surely_stored(copy, instruction))
    }

    /// The parameters through which an instruction is known to store.
    pub(super) fn surely_stored(&self, copy: usize, instruction: &Instruction<'a>) -> Origin {
        match place(instruction) {
            Some((Place::To | Place::Both, text)) => self.address(copy, text),
            _ => Origin::default(),
        }
    }

    /// The parameters through which an instruction loads; all, where nobody knows.
    pub(super) fn loaded(&self, copy: usize, instruction: &Instruction<'a>) -> Origin {
        known_or_all(self.surely_loaded(copy, instruction))
    }

    /// The parameters through which an instruction is known to load.
    pub(super) fn surely_loaded(&self, copy: usize, instruction: &Instruction<'a>) -> Origin {
        match place(instruction) {
            Some((Place::Of | Place::Both, text)) => self.address(copy, text),
            _ => Origin::default(),
        }
    }

    /// What a predicate depends on.
    pub(super) fn condition(&self, copy: usize, predicate: &'a str) -> Condition {
        let from = self.of_text(copy, predicate);
        if from.meets(Origin::THREAD) && !from.meets(Origin::BLOCK | Origin::RANK | Origin::DATA) {
            Condition::Threads
        } else if from.meets(Origin::RANK) && !from.meets(Origin::BLOCK | Origin::DATA) {
            Condition::Cluster
        } else if from.meets(Origin::THREAD | Origin::RANK | Origin::BLOCK) {
            Condition::Numbers
        } else {
            Condition::Launches
        }
    }
}

fn known_or_all(origin: Origin) -> Origin {
    if origin.meets(Origin::NOBODY) { origin | Origin::PARAMETERS } else { origin }
}

/// What stands outside of brackets in a text, and what within.
fn apart(text: &str) -> (Vec<&str>, Vec<&str>) {
    let mut parts = text.split('[');
    let mut outside: Vec<&str> = parts.next().into_iter().collect();
    let mut within = Vec::new();
    for part in parts {
        let (inner, after) = part.split_once(']').unwrap_or((part, ""));
        within.push(inner);
        outside.push(after);
    }
    (outside, within)
}

/// Whether a result has fewer bits than an address.
fn is_narrow(instruction: &Instruction<'_>) -> bool {
    let mut widths = instruction.operation.split('.').filter_map(|kind| kind.strip_prefix(['b', 'u', 's']));
    let wide = |width: &str| width == "64" || width == "128";
    match instruction.kind() {
        "cvt" => widths.next().is_some_and(|width| !wide(width)),
        _ => !widths.any(wide) && !instruction.operation.starts_with("cvta"),
    }
}

/// Whether a result cannot be an address, nor one be had back from it: a condition, a count of bits, or what is left by a small mask.
fn is_no_address(instruction: &Instruction<'_>) -> bool {
    match instruction.kind() {
        "setp" | "set" | "isspacep" | "testp" | "vote" | "match" | "activemask" | "popc" | "clz" | "bfind" | "fns" => {
            true
        }
        // Few bits from the top.
        "shr" => {
            let bits = if is_narrow(instruction) { 20 } else { 52 };
            instruction.sources.rsplit(',').next().is_some_and(|by| by.trim().parse::<u32>().is_ok_and(|by| by >= bits))
        }
        "and" | "rem" => {
            let small = |text: &str| text.trim().parse::<u32>().is_ok_and(|mask| mask < 1 << 12);
            instruction.sources.split(',').any(small)
        }
        _ => false,
    }
}

/// What a register that every kernel has stands for.
fn register(name: &str) -> Origin {
    match name {
        "%tid" | "%laneid" | "%warpid" => Origin::THREAD,
        "%cluster_ctarank" | "%cluster_ctaid" => Origin::RANK,
        name if name.starts_with("%lanemask") => Origin::THREAD,
        "%ctaid" | "%clusterid" | "%smid" => Origin::BLOCK,
        "%SP" | "%SPL" => Origin::INNER,
        _ => Origin::default(),
    }
}

/// What an instruction's result is known to be, whatever goes into it.
fn given(instruction: &Instruction<'_>) -> Origin {
    match instruction.kind() {
        "ld" if instruction.in_space("param") => Origin::default(),
        "ld" | "ldu" | "atom" | "call" | "mbarrier" => Origin::DATA,
        "elect" => Origin::THREAD,
        "mapa" => Origin::INNER,
        "cvta" if !instruction.has("to") && (instruction.in_space("shared") || instruction.has("local")) => {
            Origin::INNER
        }
        _ => Origin::default(),
    }
}

#[derive(Clone, Copy)]
enum Place {
    /// It loads from there.
    Of,
    /// It stores to there.
    To,
    Both,
}

/// The text of an address in the device's memory, as parameters and inner memory may be its origin, and what is done there.
fn place<'a>(instruction: &Instruction<'a>) -> Option<(Place, &'a str)> {
    let mut brackets = instruction.operands.split('[').skip(1).map(|text| text.split(']').next().unwrap_or_default());
    let inner = ["local", "param", "const", "shared"].iter().any(|space| instruction.in_space(space));
    match instruction.kind() {
        "ld" | "ldu" if !inner => Some((Place::Of, brackets.next()?)),
        "st" if !inner => Some((Place::To, brackets.next()?)),
        "atom" | "red" | "multimem" if !inner => Some((Place::Both, brackets.next()?)),
        // To shared memory from elsewhere, or the other way round: the first word of the two says which.
        "cp" => {
            let spaces =
                || instruction.operation.split('.').filter(|word| word.starts_with("shared") || *word == "global");
            match spaces().next() {
                Some("global") => Some((Place::To, brackets.next()?)),
                Some(_) if spaces().any(|space| space == "global") => Some((Place::Of, brackets.nth(1)?)),
                _ => None,
            }
        }
        "wmma" if !inner && instruction.has("load") => Some((Place::Of, brackets.next()?)),
        "wmma" if !inner && instruction.has("store") => Some((Place::To, brackets.next()?)),
        kind if inner || NO_ACCESS.contains(&kind) => None,
        // An instruction that is not known here may do anything.
        _ => Some((Place::Both, brackets.next()?)),
    }
}

/// Instructions with an address that neither load from the device's memory nor store to it: hints, and what is for shared memory alone.
const NO_ACCESS: [&str; 10] = [
    "prefetch",
    "prefetchu",
    "applypriority",
    "ldmatrix",
    "stmatrix",
    "mbarrier",
    "fence",
    "tensormap",
    "isspacep",
    "call",
];
