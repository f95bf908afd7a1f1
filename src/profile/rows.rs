//! From measured rounds to rows.

use crate::device::{DeviceCard, roofline};
use crate::forward::Rounds;
use crate::model::{Graph, Work};
use crate::op::{Dtype, OpError, Operation, Shape};

use super::{Gains, MOST_OTHER, Profile, Row, What, account, amdahl};

/// What a call must at least do: from the operation's formulae.
#[derive(Debug, Clone, PartialEq)]
pub struct CallCost {
    /// Its sizes, for people.
    pub label: String,
    /// Compulsory bytes read.
    pub read_bytes: f64,
    /// Compulsory bytes written.
    pub write_bytes: f64,
    /// Useful floating-point operations.
    pub flops: f64,
}

impl CallCost {
    /// From `op`'s formulae at `shape`.
    ///
    /// # Errors
    /// A formula that fails there.
    pub fn of(op: &Operation, shape: &Shape, dtype: Dtype) -> Result<Self, OpError> {
        let complete = op.complete(shape)?;
        Ok(Self {
            label: op.label(&complete),
            read_bytes: op.read_bytes(&complete, dtype)? as f64,
            write_bytes: op.write_bytes(&complete, dtype)? as f64,
            flops: op.flops(&complete)? as f64,
        })
    }
}

/// The profile of `graph` from `rounds` measured on `card`; `cost` knows the operations' formulae.
///
/// Shares are of the whole pass, or of the parts' sum where that is the longer ([`account`]).
///
/// # Errors
/// Those of `cost`.
pub fn aggregate<E>(
    graph: &Graph,
    rounds: &Rounds,
    card: &DeviceCard,
    cost: &dyn Fn(&str, &Shape) -> Result<CallCost, E>,
) -> Result<Profile, E> {
    let groups = group(graph);
    let whole_us = rounds.whole();
    let times: Vec<f64> = groups.iter().map(|(_, nodes)| rounds.sum(nodes)).collect();
    let parts_us: f64 = times.iter().sum();
    let account = account(whole_us, parts_us);
    let pass_us = account.base_us;
    let within = card.back_to_back();
    let mut rows = Vec::with_capacity(groups.len());
    for ((what, nodes), us) in groups.into_iter().zip(times) {
        let cost = match &what {
            What::Op { op, shape } => cost(op, shape)?,
            What::Glue(glue) => {
                let (read, write) = glue.bytes(graph.pass.dtype);
                CallCost { label: glue.label(), read_bytes: read as f64, write_bytes: write as f64, flops: 0.0 }
            }
        };
        let least = roofline(&within, cost.read_bytes, cost.write_bytes, cost.flops, graph.pass.dtype);
        let (share, roofline_us) = (us / pass_us, least.us * nodes.len() as f64);
        let gains = matches!(what, What::Op { .. }).then(|| Gains {
            at_1_5: amdahl::gain(share, 1.5),
            at_2: amdahl::gain(share, 2.0),
            at_roofline: amdahl::gain(share, us / roofline_us),
        });
        let (label, calls, bound) = (cost.label, nodes.len() as u32, least.bound);
        rows.push(Row { rank: 0, what, label, calls, us, share, cumulative: 0.0, roofline_us, bound, gains });
    }
    rank(&mut rows);
    let other_share = account.other_us / pass_us;
    let mut notes = [&graph.notes[..], &rounds.notes[..]].concat();
    if other_share > MOST_OTHER {
        notes.push(format!(
            "the parts do not explain {:.0} % of the pass: the machine was busy, or calls are too short to time",
            other_share * 100.0
        ));
    }
    notes.extend(account.overlap_note(graph.nodes.len()));
    Ok(Profile {
        model: graph.model.clone(),
        pass: graph.pass,
        layers: graph.layers,
        layers_of_model: graph.layers_of_model,
        parameters: graph.parameters(),
        device: card.name.clone(),
        rounds: rounds.whole_us.len(),
        whole_us,
        parts_us,
        other_us: account.other_us,
        overlap_us: account.overlap_us,
        other_share,
        launch_us: rounds.launch_us,
        rows,
        notes,
    })
}

/// The nodes of each kind of call at each shape, in order of first appearance.
fn group(graph: &Graph) -> Vec<(What, Vec<usize>)> {
    let mut groups: Vec<(What, Vec<usize>)> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let what = match &node.work {
            Work::Op { op, shape, .. } => What::Op { op: (*op).to_owned(), shape: shape.clone() },
            Work::Glue(glue) => What::Glue(*glue),
        };
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, nodes)) => nodes.push(at),
            None => groups.push((what, vec![at])),
        }
    }
    groups
}

fn rank(rows: &mut [Row]) {
    rows.sort_by(|a, b| b.us.total_cmp(&a.us));
    let mut cumulative = 0.0;
    for (at, row) in rows.iter_mut().enumerate() {
        cumulative += row.share;
        (row.rank, row.cumulative) = (at + 1, cumulative);
    }
}
