//! Launches that may begin before those in front of them have ended, and what they then must wait for.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{Named, instance, named};
use super::{KernelFile, Resolution};
use crate::op::{Operation, Role};

/// A kernel that must wait for what is in front of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MustWait {
    /// By its name expression.
    pub kernel: String,
    /// Places and names of the arguments that an earlier launch is given too, none of which it may use before.
    pub arguments: Vec<(usize, String)>,
}

impl KernelFile {
    /// The kernels at this resolution that must wait (`griddepcontrol.wait`) for what is in front of them: those that may begin
    /// early and are given scratch or an output that an earlier launch is given too, or that another early one follows, which
    /// waits for them alone.
    #[must_use]
    pub fn must_wait(&self, op: &Operation, resolution: &Resolution) -> Vec<MustWait> {
        let launches = &self.front.launches;
        let mut earlier: BTreeSet<&str> = BTreeSet::new();
        let mut all = Vec::new();
        for (index, launch) in launches.iter().enumerate() {
            let seen = |name: &str| self.written_through(op, name).iter().any(|buffer| earlier.contains(buffer));
            let named = launch.args.iter().enumerate();
            let shared = named.filter(|(_, name)| seen(name));
            let arguments: Vec<(usize, String)> = shared.map(|(place, name)| (place, name.clone())).collect();
            let followed = launches.get(index + 1).is_some_and(|next| next.pdl);
            if launch.pdl && (followed || !arguments.is_empty()) {
                all.push(MustWait { kernel: instance(&launch.kernel, &resolution.macros), arguments });
            }
            earlier.extend(launch.args.iter().flat_map(|name| self.written_through(op, name)));
        }
        all
    }

    /// The places of each kernel's arguments that are numbers and no addresses, by its name expression.
    #[must_use]
    pub fn numbers(&self, op: &Operation, resolution: &Resolution) -> BTreeMap<String, BTreeSet<usize>> {
        let mut all: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (index, launch) in self.front.launches.iter().enumerate() {
            let is_number = |name: &str| {
                matches!(
                    named(&self.front, op, name),
                    Some(Named::Symbol(_) | Named::Scalar(_) | Named::Given(_) | Named::Constant)
                )
            };
            let places = (0..launch.args.len()).filter(|place| is_number(&launch.args[*place]));
            let places: BTreeSet<usize> = places.collect();
            // What is a number in one launch may be an address in another.
            let name = match resolution.jit(index) {
                Some(jit) => jit.name.clone(),
                None => instance(&launch.kernel, &resolution.macros),
            };
            let known = all.entry(name).or_insert_with(|| places.clone());
            known.retain(|place| places.contains(place));
        }
        all
    }

    /// The buffers behind an argument that launches may write to.
    fn written_through<'a>(&'a self, op: &'a Operation, name: &'a str) -> Vec<&'a str> {
        let front = &self.front;
        let maps = front.tensor_maps.iter().filter(move |map| map.name == name).map(|map| &*map.tensor);
        let buffers = std::iter::once(name).chain(maps);
        let written = buffers.filter(|name| match named(front, op, name) {
            Some(Named::Tensor(index)) => op.tensors[index].role == Role::Output,
            Some(Named::Scratch(_)) => true,
            _ => false,
        });
        written.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::Facts;
    use crate::kernel::samples::NORM;
    use crate::op::{Dtype, Shape, samples};

    fn must_wait(text: &str) -> Vec<MustWait> {
        let op = samples::rmsnorm();
        let file = KernelFile::parse(text).unwrap();
        let shape = op.complete(&Shape::from([("rows", 8), ("cols", 5000)])).unwrap();
        let facts: Facts = [("SMS".to_owned(), 132), ("CC".to_owned(), 90)].into();
        file.must_wait(&op, &file.resolve(&shape, Dtype::F16, &facts).unwrap())
    }

    #[test]
    fn who_shares_scratch_with_an_earlier_launch_must_wait() {
        let must = must_wait(NORM);
        assert_eq!(must.len(), 1);
        assert_eq!(must[0].kernel, "rmsnorm<8, T, (2 > 1)>");
        assert!(must[0].arguments.iter().any(|(_, name)| name == "sums"), "{must:?}");
        assert!(must_wait(&NORM.replace("pdl = true", "")).is_empty());
        assert!(must_wait(&NORM.replace("\"y\", \"sums\"", "\"y\"")).is_empty());
    }
}
