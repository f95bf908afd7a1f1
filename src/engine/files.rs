//! Which files a run starts from: the workspace's, or the copies inside this program.

use std::collections::BTreeMap;
use std::path::Path;

use crate::device::DeviceCard;
use crate::kernel::{KernelFile, Language, kernel_file, kernel_file_of_device, target_arch};
use crate::op::Dtype;
use crate::workspace::{Workspace, WorkspaceError, embedded, embedded_names};

/// Reads files of the workspace, or the copies inside this program.
pub fn reader(workspace: Option<&Workspace>) -> impl Fn(&str) -> Option<String> {
    move |path: &str| match workspace {
        Some(workspace) => workspace.file(path).ok().map(|file| file.text),
        None => embedded(path).map(str::to_owned),
    }
}

/// The names of all operations here, in alphabetical order.
///
/// # Errors
/// The workspace's folder cannot be read.
pub fn operation_names(workspace: Option<&Workspace>) -> Result<Vec<String>, WorkspaceError> {
    let files = match workspace {
        Some(workspace) => workspace.names("reference")?,
        None => embedded_names("reference/").map(str::to_owned).collect(),
    };
    let mut names: Vec<String> = files
        .iter()
        .filter_map(|file| Path::new(file).file_name()?.to_str()?.strip_suffix(".toml").map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Finds an operation's kernel for a device, as a file's name and its text: the device's own, else one that ships for another device of the very same
/// architecture, under the name that it has for this one, else the one for all. The device's own may serve fewer types: then the one for
/// all is taken where it serves `dtype`.
#[must_use]
pub fn kernel(workspace: Option<&Workspace>, card: &DeviceCard, op: &str, dtype: Dtype) -> Option<(String, String)> {
    kernel_in(workspace, card, usual(card), op, dtype)
}

/// The language that kernels of a device are in where nobody names one.
fn usual(card: &DeviceCard) -> Language {
    Language::of_backend(&card.backend).first().copied().unwrap_or(Language::C)
}

/// The same in a language.
#[must_use]
pub fn kernel_in(
    workspace: Option<&Workspace>,
    card: &DeviceCard,
    language: Language,
    op: &str,
    dtype: Dtype,
) -> Option<(String, String)> {
    let folder = language.folder();
    let names = [kernel_file_of_device(op, folder, &card.name), kernel_file(op, folder)];
    let find = |names: &[String]| match workspace {
        Some(workspace) => workspace.first_file(names).ok().flatten().map(|(name, file)| (name, file.text)),
        None => names.iter().find_map(|name| embedded(name).map(|text| (name.clone(), text.to_owned()))),
    };
    let serves = |(_, text): &(String, String)| {
        KernelFile::parse(text).map_or(true, |kernel| kernel.front.dtypes.contains(&dtype))
    };
    let first = find(&names);
    // What the user has written, for all devices or for this one, comes first.
    let is_shipped = |(name, text): &(String, String)| *name == names[1] && embedded(name) == Some(text.as_str());
    let borrowed = || Some((names[0].clone(), of_the_same_architecture(card, op, folder)?.to_owned()));
    let first = if first.as_ref().is_none_or(is_shipped) { borrowed().filter(serves).or(first) } else { first };
    first
        .as_ref()
        .is_none_or(serves)
        .then(|| first.clone())
        .flatten()
        .or_else(|| find(&names[1..]).filter(serves))
        .or(first)
}

/// A kernel that ships for another device and uses what this one's architecture alone has, such as `sm_90a`.
fn of_the_same_architecture(card: &DeviceCard, op: &str, folder: &str) -> Option<&'static str> {
    let capability = u32::try_from(*card.facts.get("CC")?).ok()?;
    let (common, prefix) = (kernel_file(op, folder), format!("kernels/{folder}/"));
    let file = &common[prefix.len()..];
    let is_devices = |name: &&str| name[prefix.len()..].split_once('/').is_some_and(|(_, rest)| rest == file);
    embedded_names(&prefix).filter(is_devices).filter_map(embedded).find(|text| {
        KernelFile::parse(text).is_ok_and(|kernel| target_arch(&kernel.front.arch, capability).ends_with('a'))
    })
}

/// The kernel files of every operation for a device, as far as there are any.
///
/// # Errors
/// The workspace's folder cannot be read.
pub fn kernels(
    workspace: Option<&Workspace>,
    card: &DeviceCard,
    dtype: Dtype,
) -> Result<BTreeMap<String, String>, WorkspaceError> {
    kernels_in(workspace, card, usual(card), dtype)
}

/// The same in a language, or as they are usual for the device where there is none in it.
///
/// # Errors
/// The same.
pub fn kernels_in(
    workspace: Option<&Workspace>,
    card: &DeviceCard,
    language: Language,
    dtype: Dtype,
) -> Result<BTreeMap<String, String>, WorkspaceError> {
    let of = |op: String| {
        let own = kernel_in(workspace, card, language, &op, dtype);
        own.or_else(|| kernel(workspace, card, &op, dtype)).map(|(_, text)| (op, text))
    };
    Ok(operation_names(workspace)?.into_iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::samples;

    fn gpu(name: &str, capability: i64) -> DeviceCard {
        let facts = [("CC".to_owned(), capability)].into();
        DeviceCard { backend: "cuda".into(), name: name.into(), facts, ..samples::card() }
    }

    #[test]
    fn a_device_begins_with_what_ships_for_another_of_its_architecture() {
        let found = |card: &DeviceCard, op: &str| kernel(None, card, op, Dtype::Bf16).unwrap();
        let h200 = found(&gpu("NVIDIA H200", 90), "matmul");
        assert_eq!(h200.0, "kernels/cuda/nvidia-h200/matmul.cu");
        let h100 = found(&gpu("NVIDIA H100 80GB HBM3", 90), "matmul");
        assert_eq!(h100, ("kernels/cuda/nvidia-h100-80gb-hbm3/matmul.cu".to_owned(), h200.1));
        for (card, op) in [(gpu("NVIDIA H100 80GB HBM3", 90), "softmax"), (gpu("NVIDIA A100", 80), "matmul")] {
            assert_eq!(found(&card, op).0, format!("kernels/cuda/{op}.cu"));
        }
        assert_eq!(found(&gpu("NVIDIA B200", 100), "matmul").0, "kernels/cuda/matmul.cu");
    }
}
