//! What a kernel's verdict was, so that anybody can judge it again.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::write::sha256;
use super::{ExportError, Plan, variant_of};
use crate::evaluation::Evaluation;
use crate::op::{OpSource, TargetShape};

/// A kernel, what it was judged for, and what the judge said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The operation, as the judge had it: its tensors, and its function in PyTorch.
    pub operation: OpSource,
    /// The region's hash.
    pub region: String,
    /// The kernel file.
    pub kernel: String,
    /// SHA-256 of the kernel file, in hex.
    pub source_sha256: String,
    /// SHA-256 of the image that was judged and is in the package, in hex; of several images, of their digests, a line each.
    pub image_sha256: String,
    /// What else of it is in the package, by architecture, with the same digest of each: compiled, and never judged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unjudged: BTreeMap<String, String>,
    /// What was timed.
    pub target: Vec<TargetShape>,
    /// The judge's verdict, with its seed and what there was to beat.
    pub evaluation: Evaluation,
    /// What identifies the device it was judged on.
    pub device_key: String,
    /// The device's name.
    pub device: String,
    /// The compiler, as it names itself.
    pub compiler: String,
    /// Hash of the judging program.
    pub judge: String,
    /// PyTorch's version.
    pub torch: String,
    /// The run.
    pub run: String,
    /// The commit that holds the kernel, where it was kept as one.
    pub commit: Option<String>,
}

/// What of a kernel's files is not what was judged, a sentence each.
#[must_use]
pub fn altered(package: &Path, plan: &Plan, receipt: &Receipt) -> Vec<String> {
    let folder = variant_of(package).unwrap_or_else(|| package.to_owned());
    let mut found = Vec::new();
    let unjudged = plan.unjudged.iter().flat_map(|it| it.launches.iter().map(|launch| &launch.cubin));
    for file in plan.code.files().into_iter().chain(unjudged).chain([&plan.source]) {
        match std::fs::read(folder.join(&file.path)) {
            Err(error) => found.push(format!("{}: {error}", file.path)),
            Ok(bytes) if sha256(&bytes) != file.sha256 => {
                found.push(format!("{} is not what was judged: its digest differs from the plan's", file.path));
            }
            Ok(_) => {}
        }
    }
    if plan.code.digest() != receipt.image_sha256 || plan.source.sha256 != receipt.source_sha256 {
        found.push("the plan's digests are not those of the receipt".into());
    }
    if receipt.source_sha256 != sha256(receipt.kernel.as_bytes())
        || plan.key != receipt.region
        || plan.name != receipt.operation.name
    {
        found.push("the receipt is another kernel's".into());
    }
    found
}

/// The receipts of a package, in the order of its plans.
///
/// # Errors
/// One that cannot be read.
pub fn receipts(package: &Path) -> Result<Vec<Receipt>, ExportError> {
    let folder = variant_of(package).unwrap_or_else(|| package.to_owned()).join("receipts");
    let files: Vec<_> =
        super::plans(package)?.kernels.iter().map(|plan| folder.join(format!("{}.json", plan.name))).collect();
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).map_err(ExportError::io(path))?;
        serde_json::from_str(&text)
            .map_err(|error| ExportError::Place { place: path.to_owned(), why: format!("this is no receipt: {error}") })
    };
    files.iter().map(|path| read(path)).collect()
}
