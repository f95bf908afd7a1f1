//! Front matter at a shape: which constants the compiler receives.

use std::collections::BTreeMap;

use super::file::Scratch;
use super::jit::known_at;
use super::{FrontMatter, JitLaunch, KernelError, KernelFile};
use crate::expr::Expr;
use crate::op::{Dtype, Shape};

/// Facts of a device that front matter may use: `CORES`, `L1`, `L2`, `VECTOR_BYTES` (CPU);
/// `SMS`, `SMEM_MAX`, `CC`, `L2` (GPU).
pub type Facts = BTreeMap<String, i64>;

/// A kernel at one shape and dtype: what distinguishes one compilation from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resolution {
    /// The element type.
    pub dtype: Dtype,
    /// Macros for the compiler: tunables, derived constants, specialised symbols.
    pub macros: BTreeMap<String, i64>,
    /// Elements of each scratch buffer, in order.
    pub scratch_elements: Vec<usize>,
    /// What each launch for the shape is compiled for, where that is not all in the macros: in Triton.
    pub jit: Vec<JitLaunch>,
}

impl KernelFile {
    /// The constants for `shape` and `dtype` on a device with `facts`.
    ///
    /// # Errors
    /// A shape outside the domain, or an expression that fails there.
    pub fn resolve(&self, shape: &Shape, dtype: Dtype, facts: &Facts) -> Result<Resolution, KernelError> {
        let front = &self.front;
        let shape = &self.with_given(shape);
        let mut known: BTreeMap<String, i64> = facts.clone();
        known.extend(shape.0.clone());
        known.insert("dtype_bytes".into(), dtype.bytes() as i64);
        if let Some(domain) = &front.domain
            && evaluate("domain", domain, &known)? == 0
        {
            let shape = shape.to_string();
            return Err(KernelError::OutsideDomain { shape, domain: domain.to_string() });
        }
        let mut macros = self.values();
        for (index, variant) in front.variants.iter().enumerate() {
            if evaluate(&format!("variant {}", index + 1), &variant.when, &known)? != 0 {
                macros.extend(variant.tune.clone());
                break;
            }
        }
        known.extend(macros.clone());
        derive_lets(front, &mut known, &mut macros)?;
        let sizes = front.scratch.iter().map(|scratch| scratch_elements(scratch, &known));
        let scratch_elements = sizes.collect::<Result<_, _>>()?;
        for symbol in &front.specialize {
            let value = shape.get(symbol).ok_or_else(|| {
                KernelError::Inconsistent(format!("specialize: `{symbol}` is not a symbol of the operation"))
            })?;
            macros.insert(format!("WS_{}", symbol.to_uppercase()), value);
        }
        let mut resolution = Resolution { dtype, macros, scratch_elements, jit: Vec::new() };
        resolution.jit = self.jit_launches(shape, &known_at(shape, &resolution, facts))?;
        Ok(resolution)
    }

    /// Whether its tunables have values for `shape` and `dtype` that are worth trying: it has constants there, and its `tune_where` holds.
    #[must_use]
    pub fn is_worth_trying(&self, shape: &Shape, dtype: Dtype, facts: &Facts) -> bool {
        self.resolve(shape, dtype, facts).is_ok_and(|resolution| {
            let known = known_at(&self.with_given(shape), &resolution, facts);
            self.front
                .tune_where
                .as_ref()
                .is_none_or(|tried| tried.holds(&|name| known.get(name).copied()).unwrap_or(false))
        })
    }
}

/// Elements of a scratch buffer where these names have these values.
pub(super) fn scratch_elements(scratch: &Scratch, known: &BTreeMap<String, i64>) -> Result<usize, KernelError> {
    let place = format!("scratch {}", scratch.name);
    scratch.shape.iter().try_fold(1usize, |n, dimension| {
        let size = evaluate(&place, dimension, known)?;
        usize::try_from(size)
            .ok()
            .and_then(|size| n.checked_mul(size))
            .ok_or_else(|| KernelError::Inconsistent(format!("{place}: dimension `{dimension}` is {size}")))
    })
}

/// Derived constants may use each other in any order; a circle is an error.
fn derive_lets(
    front: &FrontMatter,
    known: &mut BTreeMap<String, i64>,
    macros: &mut BTreeMap<String, i64>,
) -> Result<(), KernelError> {
    let mut waiting: Vec<(&String, &Expr)> = front.lets.iter().collect();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut later = Vec::new();
        for (name, expr) in waiting {
            if expr.names().iter().any(|used| front.lets.contains_key(*used) && !known.contains_key(*used)) {
                later.push((name, expr));
                continue;
            }
            let value = evaluate(&format!("let {name}"), expr, known)?;
            known.insert(name.clone(), value);
            macros.insert(name.clone(), value);
        }
        if later.len() == before {
            return Err(KernelError::Inconsistent(format!("let `{}` depends on itself", later[0].0)));
        }
        waiting = later;
    }
    Ok(())
}

fn evaluate(place: &str, expr: &Expr, known: &BTreeMap<String, i64>) -> Result<i64, KernelError> {
    expr.int(&|name| known.get(name).copied())
        .map_err(|source| KernelError::Expression { place: place.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(rest: &str) -> KernelFile {
        let text = format!(
            "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n{rest}\n[tune]\nBLOCK = {{ value = 4, choices = [2, 4, 8] }}\n---*/\n"
        );
        KernelFile::parse(&text).expect("parses")
    }

    fn resolve(rest: &str) -> Result<Resolution, KernelError> {
        let facts = Facts::from([("CORES".to_owned(), 2)]);
        kernel(rest).resolve(&Shape::from([("rows", 100), ("cols", 33)]), Dtype::F32, &facts)
    }

    #[test]
    fn the_first_variant_that_holds_replaces_the_tunables() {
        let text = "/*---\nop = \"o\"\ndtypes = [\"f32\"]\n[tune]\nBLOCK = { value = 4, choices = [2, 4, 8] }\n\
                    [[variant]]\nwhen = \"cols > 40\"\ntune = { BLOCK = 2 }\n[[variant]]\nwhen = \"cols > 20\"\ntune = { BLOCK = 8 }\n---*/";
        let kernel = KernelFile::parse(text).expect("parses");
        let block = |cols| {
            let shape = Shape::from([("cols", cols)]);
            kernel.resolve(&shape, Dtype::F32, &Facts::new()).expect("resolves").macros["BLOCK"]
        };
        assert_eq!([block(10), block(30), block(50)], [4, 8, 2]);
    }

    #[test]
    fn derived_constants_may_stand_in_any_order() {
        let kernel = KernelFile::parse(
            "/*---\nop = \"o\"\ndtypes = [\"f32\"]\n[tune]\nBLOCK = { value = 4, choices = [4] }\n[let]\nA = \"B + 1\"\nB = \"BLOCK * CORES\"\n---*/",
        )
        .expect("parses");
        let facts = Facts::from([("CORES".to_owned(), 2)]);
        let macros = kernel.resolve(&Shape::default(), Dtype::F32, &facts).expect("resolves").macros;
        assert_eq!((macros["A"], macros["B"]), (9, 8));
    }

    #[test]
    fn a_circle_of_derived_constants_is_refused() {
        let kernel = KernelFile::parse("/*---\nop = \"o\"\ndtypes = [\"f32\"]\n[let]\nA = \"B\"\nB = \"A\"\n---*/")
            .expect("parses");
        let error = kernel.resolve(&Shape::default(), Dtype::F32, &Facts::new()).expect_err("circle");
        assert!(error.to_string().contains("depends on itself"), "{error}");
    }

    #[test]
    fn a_shape_outside_the_domain_is_refused_by_name() {
        let error = resolve("domain = \"cols % 8 == 0\"").expect_err("33 is odd");
        assert_eq!(error.to_string(), "shape cols=33 rows=100 is outside the kernel's domain `cols % 8 == 0`");
    }

    #[test]
    fn specialised_symbols_become_macros() {
        assert_eq!(resolve("specialize = [\"cols\"]").expect("resolves").macros["WS_COLS"], 33);
        assert!(resolve("specialize = [\"depth\"]").is_err());
    }
}
