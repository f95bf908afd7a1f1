//! Launches that may begin before those in front of them have ended, and what they then must wait for.

use std::collections::BTreeSet;

use super::names::{Named, instance, named};
use super::{KernelFile, Launch, Resolution};
use crate::op::{Operation, Role};

impl KernelFile {
    /// The kernels at this resolution that must wait (`griddepcontrol.wait`) for what is in front of them: those that may begin
    /// early and are given scratch or an output that an earlier launch is given too, or that another early one follows, which
    /// waits for them alone.
    #[must_use]
    pub fn must_wait(&self, op: &Operation, resolution: &Resolution) -> Vec<String> {
        let launches = &self.front.launches;
        let mut earlier: BTreeSet<&str> = BTreeSet::new();
        let mut all = Vec::new();
        for (index, launch) in launches.iter().enumerate() {
            let own = self.written_by_launches(op, launch);
            let followed = launches.get(index + 1).is_some_and(|next| next.pdl);
            if launch.pdl && (followed || !own.is_disjoint(&earlier)) {
                all.push(instance(&launch.kernel, &resolution.macros));
            }
            earlier.extend(own);
        }
        all
    }

    /// The buffers among a launch's arguments that launches may write to.
    fn written_by_launches<'a>(&'a self, op: &'a Operation, launch: &'a Launch) -> BTreeSet<&'a str> {
        let front = &self.front;
        let maps = |name: &'a str| front.tensor_maps.iter().filter(move |map| map.name == name).map(|map| &*map.tensor);
        let buffers = launch.args.iter().flat_map(|name| std::iter::once(&**name).chain(maps(name)));
        buffers
            .filter(|name| match named(front, op, name) {
                Some(Named::Tensor(index)) => op.tensors[index].role == Role::Output,
                Some(Named::Scratch(_)) => true,
                _ => false,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::Facts;
    use crate::kernel::samples::NORM;
    use crate::op::{Dtype, Shape, samples};

    fn must_wait(text: &str) -> Vec<String> {
        let op = samples::rmsnorm();
        let file = KernelFile::parse(text).unwrap();
        let shape = op.complete(&Shape::from([("rows", 8), ("cols", 5000)])).unwrap();
        let facts: Facts = [("SMS".to_owned(), 132), ("CC".to_owned(), 90)].into();
        file.must_wait(&op, &file.resolve(&shape, Dtype::F16, &facts).unwrap())
    }

    #[test]
    fn who_shares_scratch_with_an_earlier_launch_must_wait() {
        assert_eq!(must_wait(NORM), ["rmsnorm<8, T, (2 > 1)>"]);
        assert!(must_wait(&NORM.replace("pdl = true", "")).is_empty());
        assert!(must_wait(&NORM.replace("\"y\", \"sums\"", "\"y\"")).is_empty());
    }
}
