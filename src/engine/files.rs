//! Which files a run starts from: the workspace's, or the copies inside this program.

use std::collections::BTreeMap;
use std::path::Path;

use crate::device::DeviceCard;
use crate::kernel::{KernelFile, Language, kernel_file, kernel_file_of_device};
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

/// Finds an operation's kernel for a device, as a file's name and its text: the device's own, else the one for all. The device's own
/// may serve fewer types: then the one for all is taken where it serves `dtype`.
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
    first
        .as_ref()
        .is_none_or(serves)
        .then(|| first.clone())
        .flatten()
        .or_else(|| find(&names[1..]).filter(serves))
        .or(first)
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
