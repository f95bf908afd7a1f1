//! A kernel file against its operation: are all the names in it somebody's?

use std::collections::BTreeSet;

use super::names::{Named, named};
use super::{KernelError, KernelFile};
use crate::expr::Expr;
use crate::op::{Operation, Role};

/// Facts of a GPU that front matter may use: multiprocessors, bytes of shared memory a block may have, compute
/// capability (90 for 9.0), bytes of L2.
pub const CUDA_FACTS: [&str; 4] = ["SMS", "SMEM_MAX", "CC", "L2"];

/// Facts of a processor that front matter may use.
const CPU_FACTS: [&str; 4] = ["CORES", "L1", "L2", "VECTOR_BYTES"];

impl KernelFile {
    /// Whether the file fits its operation: what its expressions and launches name is there, no name means two things, and
    /// every output reaches a launch.
    ///
    /// # Errors
    /// The first name that is wrong, and where it stands.
    pub fn check_against(&self, op: &Operation) -> Result<(), KernelError> {
        self.check_names(op)?;
        self.check_expressions(op)?;
        let fail = |what: String| Err(KernelError::Inconsistent(what));
        let front = &self.front;
        for map in &front.tensor_maps {
            if !matches!(named(front, op, &map.tensor), Some(Named::Tensor(_) | Named::Scratch(_))) {
                return fail(format!(
                    "tensor map `{}`: `{}` is neither a tensor of {} nor a scratch buffer",
                    map.name, map.tensor, op.name
                ));
            }
        }
        let mut reached = BTreeSet::new();
        for (index, launch) in front.launches.iter().enumerate() {
            for name in &launch.args {
                match named(front, op, name) {
                    Some(Named::Map) => {
                        let maps = front.tensor_maps.iter().filter(|map| map.name == *name);
                        reached.extend(maps.map(|map| map.tensor.as_str()));
                    }
                    Some(_) => {
                        reached.insert(name.as_str());
                    }
                    None => {
                        let (number, kernel) = (index + 1, &launch.kernel);
                        let there: Vec<&str> = argument_names(self, op).into_iter().collect();
                        let there = there.join(", ");
                        return fail(format!(
                            "launch {number} ({kernel}): nothing is called `{name}`; there are {there}"
                        ));
                    }
                }
            }
        }
        let mut outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        if let Some(output) = outputs.find(|tensor| front.is_cuda() && !reached.contains(tensor.name.as_str())) {
            return fail(format!("no launch is given the output `{}`", output.name));
        }
        Ok(())
    }

    /// No name of the file's own is one of the operation's or the device's.
    fn check_names(&self, op: &Operation) -> Result<(), KernelError> {
        let front = &self.front;
        if front.op != op.name {
            return Err(KernelError::Inconsistent(format!("it is a kernel for {}, not for {}", front.op, op.name)));
        }
        let of_op: BTreeSet<&str> = operation_names(op).chain(["dtype_bytes"]).collect();
        let own = front.tune.keys().chain(front.lets.keys()).chain(front.given.keys());
        let own = own.chain(front.scratch.iter().map(|scratch| &scratch.name));
        for name in own.chain(front.tensor_maps.iter().map(|map| &map.name)) {
            let whose = if of_op.contains(name.as_str()) {
                format!("of the operation {}", op.name)
            } else if self.facts().contains(&name.as_str()) {
                "of a fact of the device".to_owned()
            } else {
                continue;
            };
            return Err(KernelError::Inconsistent(format!("`{name}` is the name {whose} already")));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = front.scratch.iter().find(|scratch| !seen.insert(&scratch.name)) {
            return Err(KernelError::Inconsistent(format!("scratch `{}` stands twice", twice.name)));
        }
        let is_symbol = |name: &&String| op.symbols.contains(name) || front.given.contains_key(*name);
        if let Some(symbol) = front.divisible.iter().find(|symbol| !is_symbol(symbol)) {
            return Err(KernelError::Inconsistent(format!("divisible: `{symbol}` is not a symbol of {}", op.name)));
        }
        match front.specialize.iter().find(|symbol| !is_symbol(symbol)) {
            Some(symbol) => {
                Err(KernelError::Inconsistent(format!("specialize: `{symbol}` is not a symbol of {}", op.name)))
            }
            None => Ok(()),
        }
    }

    /// Every expression names only what has a value where it stands.
    fn check_expressions(&self, op: &Operation) -> Result<(), KernelError> {
        let front = &self.front;
        // What decides the tunables' values cannot depend on them.
        let early: BTreeSet<&str> = op
            .symbols
            .iter()
            .chain(front.given.keys())
            .map(String::as_str)
            .chain(["dtype_bytes"])
            .chain(self.facts())
            .collect();
        let late: BTreeSet<&str> =
            early.iter().copied().chain(front.tune.keys().chain(front.lets.keys()).map(String::as_str)).collect();
        let check = |place: String, known: &BTreeSet<&str>, expr: &Expr| match expr
            .names()
            .iter()
            .find(|name| !known.contains(*name))
        {
            Some(name) => {
                let hint = if late.contains(*name) { " there: it is chosen only afterwards" } else { "" };
                Err(KernelError::Inconsistent(format!("{place}: `{expr}` uses `{name}`, which has no value{hint}")))
            }
            None => Ok(()),
        };
        if let Some(domain) = &front.domain {
            check("domain".into(), &early, domain)?;
        }
        for (index, variant) in front.variants.iter().enumerate() {
            check(format!("variant {}", index + 1), &early, &variant.when)?;
        }
        if let Some(tried) = &front.tune_where {
            check("tune_where".into(), &late, tried)?;
        }
        for (name, expr) in &front.lets {
            check(format!("let {name}"), &late, expr)?;
        }
        for scratch in &front.scratch {
            scratch.shape.iter().try_for_each(|expr| check(format!("scratch {}", scratch.name), &late, expr))?;
        }
        for map in &front.tensor_maps {
            let all = [&map.dims, &map.strides, &map.extent, &map.elem_strides].into_iter().flatten().chain(&map.when);
            all.into_iter().try_for_each(|expr| check(format!("tensor map `{}`", map.name), &late, expr))?;
        }
        for (index, launch) in front.launches.iter().enumerate() {
            let place = format!("launch {} ({})", index + 1, launch.kernel);
            let all = [&launch.grid, &launch.block, &launch.cluster].into_iter().flatten();
            let jit = launch.num_warps.iter().chain(&launch.num_stages).chain(&launch.num_ctas);
            all.chain(&launch.shared)
                .chain(&launch.when)
                .chain(jit)
                .chain(launch.constexprs.values())
                .try_for_each(|expr| check(place.clone(), &late, expr))?;
        }
        Ok(())
    }

    fn facts(&self) -> [&'static str; 4] {
        if self.front.is_cuda() { CUDA_FACTS } else { CPU_FACTS }
    }
}

fn operation_names(op: &Operation) -> impl Iterator<Item = &str> {
    let tensors = op.tensors.iter().map(|tensor| tensor.name.as_str());
    tensors.chain(op.symbols.iter().map(String::as_str)).chain(op.scalars.iter().map(|scalar| scalar.name.as_str()))
}

/// Everything an argument can be, constants left out.
fn argument_names<'a>(kernel: &'a KernelFile, op: &'a Operation) -> BTreeSet<&'a str> {
    let scratch = kernel.front.scratch.iter().map(|scratch| scratch.name.as_str());
    operation_names(op).chain(scratch).chain(kernel.front.tensor_maps.iter().map(|map| map.name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::samples::{GEMM, NORM};
    use crate::op::samples;

    #[test]
    fn files_that_fit_their_operation_are_accepted() {
        KernelFile::parse(NORM).expect("parses").check_against(&samples::rmsnorm()).expect("fits");
        KernelFile::parse(GEMM).expect("parses").check_against(&samples::matmul()).expect("fits");
        let cpu = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\ndomain = \"cols > CORES\"\n---*/";
        KernelFile::parse(cpu).expect("parses").check_against(&samples::rmsnorm()).expect("fits");
    }

    #[test]
    fn names_that_are_nobodys_or_two_things_at_once_are_refused() {
        let op = samples::rmsnorm();
        for (from, to, part) in [
            (
                "\"eps\"",
                "\"epsilon\"",
                "launch 2 (rmsnorm<VEC, T, (ROWS > 1)>): nothing is called `epsilon`; there are cols, eps",
            ),
            ("\"y\", ", "", "no launch is given the output `y`"),
            ("op = \"rmsnorm\"", "op = \"matmul\"", "a kernel for matmul, not for rmsnorm"),
            ("\"sums\"", "\"x\"", "`x` is the name of the operation rmsnorm already"),
            ("VEC", "SMS", "`SMS` is the name of a fact of the device already"),
            ("dtypes =", "specialize = [\"depth\"]\ndtypes =", "specialize: `depth`"),
            (
                "dtypes =",
                "domain = \"cols % VEC == 0\"\ndtypes =",
                "domain: `cols % VEC == 0` uses `VEC`, which has no value there",
            ),
            ("dtypes =", "domain = \"cols > CORES\"\ndtypes =", "uses `CORES`, which has no value"),
            ("SMS < 100", "THREADS < 100", "variant 1: "),
            ("THREADS / 128", "depth / 128", "let ROWS: "),
            ("[\"rows\", \"4\"]\n[[launch]]", "[\"depth\"]\n[[launch]]", "scratch sums: "),
            ("THREADS * 4", "depth", "launch 2 (rmsnorm<VEC, T, (ROWS > 1)>): `depth` uses `depth`"),
            ("cols > 4096", "depth", "launch 1 (partial): "),
            (
                "[[launch]]\nkernel = \"partial\"",
                "[[scratch]]\nname = \"sums\"\ndtype = \"T\"\nshape = []\n[[launch]]\nkernel = \"partial\"",
                "scratch `sums` stands twice",
            ),
        ] {
            let error =
                KernelFile::parse(&NORM.replace(from, to)).expect(to).check_against(&op).expect_err(to).to_string();
            assert!(error.contains(part), "{to}: {error}");
        }
        let op = samples::matmul();
        for (from, to, part) in [
            ("BK", "K", "`K` is the name of the operation matmul already"),
            (
                "tensor = \"a\"",
                "tensor = \"M\"",
                "tensor map `map_a`: `M` is neither a tensor of matmul nor a scratch buffer",
            ),
            ("\"map_a\"\n", "\"c\"\n", "`c` is the name of the operation"),
            ("[\"64\"]", "[\"cols\"]", "tensor map `map_bias`: `cols` uses `cols`"),
        ] {
            let error =
                KernelFile::parse(&GEMM.replace(from, to)).expect(to).check_against(&op).expect_err(to).to_string();
            assert!(error.contains(part), "{to}: {error}");
        }
    }

    #[test]
    fn an_output_may_be_reached_through_a_tensor_map() {
        let text = GEMM.replace("\"c\"", "\"map_c\"").replace(
            "[[launch]]\nkernel = \"gemm_wgmma",
            "[[tensormap]]\nname = \"map_c\"\ntensor = \"c\"\ndims = [\"N\"]\nbox = [\"64\"]\n[[launch]]\nkernel = \"gemm_wgmma",
        );
        KernelFile::parse(&text).expect("parses").check_against(&samples::matmul()).expect("fits");
    }
}
