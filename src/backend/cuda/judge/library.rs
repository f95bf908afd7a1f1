//! What users have today for matrix products and their sums: cuBLAS.

use std::rc::Rc;

use super::super::driver::{Arguments, CudaError, Function, Geometry, Vault};
use super::cublas::{Gemms, Precision, Side};
use super::desk::{Build, Desk};
use crate::op::{Dtype, Operation, Shape};

/// The name for ledgers.
pub const NAME: &str = "cuBLAS";

pub(super) const SOURCE: &str = concat!(include_str!("device/common.cuh"), "\n", include_str!("device/library.cu"));

/// A call of an operation made of cuBLAS's products; cheap to clone.
#[derive(Debug, Clone)]
pub struct Library {
    desk: Rc<Desk>,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// `matmul`; the kernel writes the bias, to which the product is added.
    Gemm { dtype: Dtype, spread: Option<Function> },
    /// `fused_mlp`: three products and what is between them.
    Mlp { dtype: Dtype, silu_mul: Function, gate: Rc<Vault>, up: Rc<Vault> },
}

impl Library {
    /// What there is for an operation at a (complete) shape.
    ///
    /// # Errors
    /// A sentence: the library is not installed, or there is no memory. `Ok(None)` where it has nothing for the operation.
    pub fn find(
        desk: &Rc<Desk>,
        op: &Operation,
        shape: &Shape,
        dtype: Dtype,
        build: Build<'_>,
    ) -> Result<Option<Self>, String> {
        let text = |error: CudaError| error.to_string();
        let kernel = |name: &str| {
            let module = desk.gpu().module(&build("library", SOURCE)?).map_err(text)?;
            module.function(name).map_err(text)
        };
        let symbol = |name: &str| shape.get(name).unwrap_or(0);
        let kind = match op.name.as_str() {
            "matmul" => {
                desk.find_cublas().map_err(Clone::clone)?;
                let name = format!("ws_spread_{}", dtype.bytes());
                Kind::Gemm { dtype, spread: (symbol("has_bias") != 0).then(|| kernel(&name)).transpose()? }
            }
            "fused_mlp" => {
                desk.find_cublas().map_err(Clone::clone)?;
                let bytes = symbol("B") as usize * symbol("H") as usize * dtype.bytes();
                let hidden = || desk.vault(bytes).map_err(text);
                Kind::Mlp { dtype, silu_mul: kernel(&format!("ws_silu_mul_{dtype}"))?, gate: hidden()?, up: hidden()? }
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { desk: Rc::clone(desk), kind }))
    }

    /// Opens what it works with, which is sealed while candidates run.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn open(&self) -> Result<(), CudaError> {
        if let Kind::Mlp { gate, up, .. } = &self.kind {
            gate.open()?;
            up.open()?;
        }
        self.desk.cublas().map_or(Ok(()), |cublas| cublas.workspace().open())
    }

    /// Puts one call on the stream: `pointers` and `ints` as a kernel of the operation gets them.
    ///
    /// # Errors
    /// What the library or the driver refused, arguments that are not the operation's among it.
    pub fn launch(&self, pointers: &[Option<u64>], ints: &[i64]) -> Result<(), CudaError> {
        match &self.kind {
            Kind::Gemm { dtype, spread } => self.gemm(*dtype, spread.as_ref(), pointers, ints),
            Kind::Mlp { dtype, silu_mul, gate, up } => {
                let (&[Some(x), Some(w_gate), Some(w_up), Some(w_down), Some(y)], &[b, d, h]) = (pointers, ints) else {
                    return Err(strange("fused_mlp"));
                };
                self.product(*dtype, [1, b, h, d], true, [x, w_gate, gate.ptr()], false)?;
                self.product(*dtype, [1, b, h, d], true, [x, w_up, up.ptr()], false)?;
                let arguments = Arguments::new().pointer(gate.ptr()).pointer(up.ptr()).pointer(gate.ptr()).long(b * h);
                let blocks = self.desk.blocks((b * h) as u64 * dtype.bytes() as u64 / 16);
                self.desk.gpu().launch(silu_mul, &Geometry::linear(blocks, 256), &arguments)?;
                self.product(*dtype, [1, b, d, h], true, [gate.ptr(), w_down, y], false)
            }
        }
    }

    fn gemm(
        &self,
        dtype: Dtype,
        spread: Option<&Function>,
        pointers: &[Option<u64>],
        ints: &[i64],
    ) -> Result<(), CudaError> {
        let (&[Some(a), Some(b), bias, Some(c)], &[batch, m, n, k, trans_b, has_bias]) = (pointers, ints) else {
            return Err(strange("matmul"));
        };
        if has_bias != 0 {
            let (Some(spread), Some(bias)) = (spread, bias) else { return Err(strange("matmul")) };
            let rows = batch * m;
            let arguments = Arguments::new().pointer(bias).pointer(c).long(rows).long(n);
            let across = (n as u64).div_ceil(256).clamp(1, 1 << 20) as u32;
            let down = (rows as u64).div_ceil(8).clamp(1, 4096) as u32;
            let geometry = Geometry { grid: [across, down, 1], ..Geometry::linear(1, 256) };
            self.desk.gpu().launch(spread, &geometry, &arguments)?;
        }
        self.product(dtype, [batch, m, n, k], trans_b != 0, [a, b, c], has_bias != 0)
    }

    fn product(
        &self,
        dtype: Dtype,
        [batch, m, n, k]: [i64; 4],
        trans_b: bool,
        [a, b, out]: [u64; 3],
        add: bool,
    ) -> Result<(), CudaError> {
        let cublas = self.desk.find_cublas().map_err(|why| CudaError::Launch(why.clone()))?;
        let side = |at: u64, step: i64, next: i64| Side { at, step, next };
        let gemms = Gemms {
            batch: batch as usize,
            m: m as usize,
            n: n as usize,
            k: k as usize,
            trans_b,
            a: side(a, k, m * k),
            b: side(b, if trans_b { k } else { n }, k * n),
            out: side(out, n, m * n),
        };
        cublas.multiply(&gemms, Precision::Of(dtype), add)
    }
}

fn strange(op: &str) -> CudaError {
    CudaError::Launch(format!("{NAME} got arguments that are not those of `{op}`"))
}
