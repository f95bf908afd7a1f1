//! The languages of a run's kernels: those that were asked for, else those in which the workspace has kernels of its own.

use anyhow::{Context, bail};

use super::RunArgs;
use crate::backend::cuda::TritonFound;
use crate::device::DeviceCard;
use crate::engine::{Rival, RunState, TargetState};
use crate::kernel::{Language, is_unwritten};
use crate::workspace::{RunSettings, embedded, python};

/// Finds the kernel of an operation in a language, as a file's name and its text.
type FindKernel<'a> = dyn Fn(&str, Language) -> Option<(String, String)> + 'a;

/// A language by its name on the command line.
pub(super) fn language_of(text: &str) -> Result<Language, String> {
    let known = || Language::ALL.map(Language::name).join(", ");
    Language::ALL
        .into_iter()
        .find(|language| language.name() == text)
        .ok_or_else(|| format!("`{text}` is none of {}", known()))
}

impl RunArgs {
    /// The languages that kernels may be in on a kind of device: those that were asked for, in their order, else all.
    pub(in crate::cli) fn languages_of(&self, backend: &str) -> anyhow::Result<Vec<Language>> {
        let there = Language::of_backend(backend);
        if let Some(strange) = self.language.iter().find(|language| !there.contains(language)) {
            bail!(
                "--language {}: kernels there are in {}",
                strange.name(),
                there.iter().map(|language| language.name()).collect::<Vec<_>>().join(" or ")
            );
        }
        Ok(if self.language.is_empty() { there } else { self.language.clone() })
    }

    /// The language of the kernels that a model's run begins with, on this device.
    pub(super) fn language_on(&self, device: &DeviceCard) -> anyhow::Result<Language> {
        let languages = self.languages_of(&device.backend)?;
        languages.first().copied().context("this build has no language for that device")
    }

    /// Where several languages were asked for, has each target be in any of them, and be held against the kernel that there is in another;
    /// `find` gives that of an operation in a language. Where none was asked for, the same for targets of which the workspace has a kernel
    /// of its own in another language, such as one that an earlier run has won; `tell` hears of them.
    pub(super) fn rival(
        &self,
        state: &mut RunState,
        settings: &RunSettings,
        tell: &dyn Fn(&str),
        find: &FindKernel<'_>,
    ) -> anyhow::Result<()> {
        let languages = self.languages_of(&state.backend)?;
        let others = |target: &TargetState| -> Vec<Rival> {
            let others = languages.iter().filter(|language| Language::of_file(&target.file) != Some(**language));
            let found = others.filter_map(|language| find(&target.op, *language));
            found.filter(|(_, text)| !is_unwritten(text)).map(|(file, text)| Rival { file, text }).collect()
        };
        if !self.language.is_empty() {
            for target in &mut state.targets {
                target.rivals = others(target);
                target.languages.clone_from(&languages);
            }
            return Ok(());
        }
        let (mut both, mut missing) = (Vec::new(), None);
        for target in &mut state.targets {
            let mut rivals = others(target);
            // What ships stands in any workspace that was copied, and nobody has won it.
            rivals.retain(|rival| embedded(&rival.file) != Some(rival.text.as_str()));
            let Some(first) = rivals.first() else { continue };
            if let Err(why) = self.compiles(first, settings) {
                missing.get_or_insert_with(|| format!("{} is left out: {why}", first.file));
                continue;
            }
            both.push(target.op.as_str());
            target.rivals = rivals;
            target.languages.clone_from(&languages);
        }
        if let Some(why) = missing {
            tell(&format!("note: {why}"));
        }
        if !both.is_empty() {
            let names: Vec<&str> = languages.iter().map(|language| language.name()).collect();
            tell(&format!(
                "{}: there is a kernel in {}; both are judged, and the faster one is gone on from (--language names one)",
                both.join(", "),
                names.join(" and one in ")
            ));
        }
        Ok(())
    }

    /// Whether the compiler of a kernel is there; a worker elsewhere has its own.
    ///
    /// # Errors
    /// A sentence: what is missing.
    fn compiles(&self, rival: &Rival, settings: &RunSettings) -> Result<(), String> {
        if Language::of_file(&rival.file) != Some(Language::Triton) || self.crew.is_elsewhere(settings) {
            return Ok(());
        }
        let found = TritonFound::of(&python(self.crew.python.python.as_deref()));
        found.map(drop).map_err(|why| format!("it needs a Python with triton, and {why}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn a_kernel_that_cannot_be_compiled_here_is_left_out_in_a_sentence() {
        let line = ["run", "k.cu", "--python", "/nowhere/python3"];
        let args = <Line as clap::Parser>::try_parse_from(line).unwrap().args;
        let rival = |file: &str| Rival { file: file.into(), text: String::new() };
        let none = RunSettings::default();
        let why = args.compiles(&rival("kernels/triton/k.py"), &none).unwrap_err();
        assert!(why.starts_with("it needs a Python with triton, and /nowhere/python3 cannot be started"), "{why}");
        assert_eq!(args.compiles(&rival("kernels/cuda/k.cu"), &none), Ok(()));
        // What a worker elsewhere has, only that worker knows.
        let elsewhere = RunSettings { worker: crate::workspace::Commands(vec!["ssh a worker".into()]), ..none };
        assert_eq!(args.compiles(&rival("kernels/triton/k.py"), &elsewhere), Ok(()));
    }
}
