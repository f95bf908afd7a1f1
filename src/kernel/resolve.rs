//! Front matter at a shape: which constants the compiler receives.

use std::collections::BTreeMap;

use super::{FrontMatter, KernelError, KernelFile};
use crate::expr::Expr;
use crate::op::{Dtype, Shape};

/// Facts of a device that front matter may use: `CORES`, `L2`, `VECTOR_BYTES` (CPU); `SMS`, `SMEM_MAX`, `CC`, `L2` (GPU).
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
}

impl KernelFile {
    /// The constants for `shape` and `dtype` on a device with `facts`.
    ///
    /// # Errors
    /// A shape outside the domain, or an expression that fails there.
    pub fn resolve(&self, shape: &Shape, dtype: Dtype, facts: &Facts) -> Result<Resolution, KernelError> {
        let front = &self.front;
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
        let scratch_elements = front
            .scratch
            .iter()
            .map(|scratch| {
                let place = format!("scratch {}", scratch.name);
                scratch.shape.iter().try_fold(1usize, |n, dimension| {
                    let size = evaluate(&place, dimension, &known)?;
                    usize::try_from(size)
                        .ok()
                        .and_then(|size| n.checked_mul(size))
                        .ok_or_else(|| KernelError::Inconsistent(format!("{place}: dimension `{dimension}` is {size}")))
                })
            })
            .collect::<Result<_, _>>()?;
        for symbol in &front.specialize {
            let value = shape.get(symbol).ok_or_else(|| {
                KernelError::Inconsistent(format!("specialize: `{symbol}` is not a symbol of the operation"))
            })?;
            macros.insert(format!("WS_{}", symbol.to_uppercase()), value);
        }
        Ok(Resolution { dtype, macros, scratch_elements })
    }
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
