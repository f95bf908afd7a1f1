//! What a pass needs in memory, known before anything is allocated.

use super::{Graph, ModelError, Tensor};

/// Which activations share memory: a tensor's slot is free again after its last reader.
///
/// Sharing is what an inference engine does, and keeps the caches as they would be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// For each tensor of the graph, its slot; `None` for what no node writes.
    pub of: Vec<Option<usize>>,
    /// Bytes of each slot.
    pub bytes: Vec<u64>,
}

impl Slots {
    pub(super) fn plan(graph: &Graph) -> Self {
        let mut last_use = vec![0; graph.tensors.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            node.tensors.iter().for_each(|binding| last_use[binding.tensor] = at);
        }
        last_use[graph.output] = usize::MAX;
        let mut plan = Self { of: vec![None; graph.tensors.len()], bytes: Vec::new() };
        let mut free: Vec<usize> = Vec::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            // Outputs take their slots before the inputs of the same node give theirs back: no kernel works in place.
            for binding in &node.tensors {
                let tensor = &graph.tensors[binding.tensor];
                if tensor.kind.is_activation() && plan.of[binding.tensor].is_none() {
                    let slot = plan.take(&mut free, tensor.bytes(graph.pass.dtype));
                    plan.of[binding.tensor] = Some(slot);
                }
            }
            for binding in &node.tensors {
                if let Some(slot) = plan.of[binding.tensor]
                    && last_use[binding.tensor] == at
                    && !free.contains(&slot)
                {
                    free.push(slot);
                }
            }
        }
        plan
    }

    /// A free slot of exactly this size (a decoder repeats few sizes), or a new one.
    fn take(&mut self, free: &mut Vec<usize>, bytes: u64) -> usize {
        if let Some(at) = free.iter().position(|slot| self.bytes[*slot] == bytes) {
            return free.swap_remove(at);
        }
        self.bytes.push(bytes);
        self.bytes.len() - 1
    }
}

/// Bytes a pass needs, scratch and padding aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Weights, caches of keys and values, rotary tables and ids.
    pub constant: u64,
    /// Of these, what belongs to one layer.
    pub per_layer: u64,
    /// Activations, after sharing.
    pub activations: u64,
}

impl Memory {
    pub(super) fn of(graph: &Graph) -> Self {
        let bytes = |keep: &dyn Fn(&Tensor) -> bool| -> u64 {
            graph.tensors.iter().filter(|t| keep(t)).map(|t| t.bytes(graph.pass.dtype)).sum()
        };
        Self {
            constant: bytes(&|t| !t.kind.is_activation()),
            per_layer: bytes(&|t| !t.kind.is_activation() && t.name.starts_with("layers.0.")),
            activations: graph.slots().bytes.iter().sum(),
        }
    }

    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.constant + self.activations
    }

    /// Refuses a pass that needs more than nine tenths of `available` bytes: the kernels' scratch, the programs and
    /// the system need the rest, and a machine that swaps times nothing.
    ///
    /// # Errors
    /// A sentence with both figures, and the number of layers that would fit.
    pub fn check(&self, graph: &Graph, available: u64) -> Result<(), ModelError> {
        let usable = available / 10 * 9;
        if self.total() <= usable {
            return Ok(());
        }
        let pass = graph.pass;
        let need = format!(
            "{} with {} in {} needs {} (weights {}), and this machine has {} free",
            graph.model,
            pass.label(),
            pass.dtype,
            human(self.total()),
            human(self.constant),
            human(available),
        );
        let without = self.total() - self.per_layer * graph.layers;
        let fit = usable.checked_sub(without).map_or(0, |rest| rest / self.per_layer.max(1)).min(graph.layers);
        let hint = if fit > 0 {
            format!("--layers {fit} would fit; the time of a whole model is that of its layers repeated")
        } else if graph.activation_bound() {
            "ask for a smaller --batch or --seq".to_owned()
        } else {
            "not even one layer fits: use a larger machine or a smaller model".to_owned()
        };
        Err(ModelError::Memory(format!("{need}: {hint}")))
    }
}

impl Graph {
    /// Whether a shorter pass would help: activations outweigh what is not repeated.
    fn activation_bound(&self) -> bool {
        let memory = self.memory();
        memory.activations > memory.constant - memory.per_layer * self.layers
    }
}

/// Bytes in GiB or MiB, as memory is sold.
fn human(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1u32 << 20);
    if mib >= 1024.0 { format!("{:.1} GiB", mib / 1024.0) } else { format!("{mib:.0} MiB") }
}
