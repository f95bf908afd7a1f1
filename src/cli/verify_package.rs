//! `warpsmith verify PACKAGE --model DIR`: an exported package in the model that it was made for.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::options::{LoadArgs, PythonArgs};
use super::problem::told;
use super::pytorch;
use crate::export::{self, Asked, Plans};
use crate::op::Dtype;
use crate::torch::Python;
use crate::torch::model::torch_name;

/// Seconds that each way is timed in a session, and inputs on which results are compared.
const SECONDS: f64 = 1.0;
const DRAWS: u32 = 3;

/// How often either side is compiled and timed anew at the end of a run: enough to see whether the model is faster.
const SESSIONS: u32 = 2;

/// What was asked on the command line.
pub(super) struct Wanted<'a> {
    pub(super) package: &'a Path,
    pub(super) model: Option<&'a Path>,
    pub(super) load: &'a LoadArgs,
    pub(super) python: &'a PythonArgs,
    pub(super) dtype: Option<Dtype>,
    pub(super) max_autotune: bool,
    /// How often each way is compiled and timed anew.
    pub(super) sessions: u32,
    /// Whether each kernel is tried alone as well.
    pub(super) diagnose: bool,
    pub(super) json: bool,
}

/// What is asked of a package, in full paths, where nobody wants anything else: the model as it was when the kernels were judged.
pub(super) fn asked<'a>(plans: &'a Plans, package: &'a Path, folder: &'a Path) -> Asked<'a> {
    Asked {
        package,
        folder,
        load: plans.load.as_deref(),
        device: plans.platform.torch_device(),
        dtype: plans.dtype.as_deref(),
        seed: crate::rng::secret_seed() % (1 << 31),
        draws: DRAWS,
        sessions: SESSIONS,
        seconds: SECONDS,
        threads: pytorch::threads(),
        max_autotune: false,
        alone: None,
    }
}

pub(super) fn main(wanted: &Wanted<'_>) -> anyhow::Result<ExitCode> {
    let plans = export::plans(wanted.package)?;
    let Some(model) = wanted.model else {
        bail!(
            "{0} is a package; `warpsmith verify {0} --model MODEL_DIR` names the model to try it in",
            wanted.package.display()
        );
    };
    let load = wanted.load.function.as_deref().or(plans.load.as_deref());
    if !pytorch::is_model(model, &LoadArgs { function: load.map(str::to_owned) }) {
        bail!("{} is no PyTorch model: a directory with a model.py, or --load with a function", model.display());
    }
    let full = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let (package, folder) = (full(wanted.package)?, full(model)?);
    let asked = Asked {
        load,
        dtype: wanted.dtype.map(torch_name).or(plans.dtype.as_deref()),
        sessions: wanted.sessions,
        max_autotune: wanted.max_autotune,
        ..asked(&plans, &package, &folder)
    };
    let python = Python::chosen(wanted.python.python.as_deref());
    let mut tell = |doing: &str| {
        if !wanted.json {
            super::warn(doing);
        }
    };
    let verified = export::verify(&python, &asked, &mut tell);
    let heading = format!("{} {} in {}", plans.name, plans.version, model.display());
    if !wanted.diagnose {
        let verified = verified.map_err(told)?;
        super::say(&match wanted.json {
            true => serde_json::to_string_pretty(&verified)?,
            false => format!("{heading}\n{}", verified.text()),
        });
        return Ok(ExitCode::from(u8::from(!verified.wrong().is_empty())));
    }
    // A kernel that ends the process of all together is to be found too; what is wrong without any is told by the diagnosis itself.
    let diagnosis = export::diagnose(&python, &asked, &plans, &verified, &mut tell).map_err(told)?;
    let right = diagnosis.is_right();
    let (text, data) = match verified {
        Ok(mut verified) => {
            verified.diagnosis = Some(diagnosis);
            (verified.text(), serde_json::to_value(&verified)?)
        }
        Err(error) => {
            let text = format!("with all kernels: {error}\n\n{}", diagnosis.text());
            (text, serde_json::json!({ "error": error.to_string(), "diagnosis": diagnosis }))
        }
    };
    super::say(&match wanted.json {
        true => serde_json::to_string_pretty(&data)?,
        false => format!("{heading}\n{text}"),
    });
    Ok(ExitCode::from(u8::from(!right)))
}
