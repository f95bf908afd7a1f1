//! Which GPUs a file is for, and with which options it is compiled.

use super::{FrontMatter, KernelError};

/// An architecture as front matter names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arch {
    /// `sm_80+`: this one and all later ones.
    From(u32),
    /// `sm_90`: this one.
    Exactly(u32),
    /// `sm_90a`: this one, with the instructions that no other has.
    Specific(u32),
}

impl Arch {
    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("sm_")?;
        let digits = rest.trim_end_matches(|c: char| !c.is_ascii_digit());
        let plain = digits.len() >= 2 && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        let cc: u32 = digits.parse().ok().filter(|_| plain && digits.len() <= 3)?;
        match &rest[digits.len()..] {
            "+" => Some(Self::From(cc)),
            "" => Some(Self::Exactly(cc)),
            "a" => Some(Self::Specific(cc)),
            _ => None,
        }
    }

    const fn fits(self, device: u32) -> bool {
        match self {
            Self::From(least) => device >= least,
            Self::Exactly(cc) | Self::Specific(cc) => device == cc,
        }
    }
}

/// Whether a GPU of compute capability `cc` (90 for 9.0) is among those listed; an empty list has all of them.
#[must_use]
pub fn fits_arch(arch: &[String], cc: u32) -> bool {
    arch.is_empty() || arch.iter().filter_map(|text| Arch::parse(text)).any(|arch| arch.fits(cc))
}

/// The architecture to compile for on a GPU of compute capability `cc`: `sm_90a` on a 9.0 where that is listed, else `sm_90`.
#[must_use]
pub fn target_arch(arch: &[String], cc: u32) -> String {
    let specific = arch.iter().any(|text| Arch::parse(text) == Some(Arch::Specific(cc)));
    format!("sm_{cc}{}", if specific { "a" } else { "" })
}

impl FrontMatter {
    /// Whether a CUDA file is for a GPU of compute capability `cc` (90 for 9.0).
    ///
    /// # Errors
    /// A sentence that names what it is for; or a name that is none of a GPU.
    pub fn check_arch(&self, cc: u32) -> Result<(), KernelError> {
        let fail = |what: String| Err(KernelError::Inconsistent(what));
        if let Some(unknown) = self.arch.iter().find(|text| Arch::parse(text).is_none()) {
            return fail(format!("arch `{unknown}` is no GPU's; they are written sm_80+ (and later), sm_90, sm_90a"));
        }
        if !fits_arch(&self.arch, cc) {
            return fail(format!("it is for {}; this device is sm_{cc}", self.arch.join(", ")));
        }
        Ok(())
    }
}

/// What NVRTC is given for the options of a CUDA file.
///
/// # Errors
/// An option that is not among those allowed.
pub fn nvrtc_options(options: &[String]) -> Result<Vec<String>, KernelError> {
    options
        .iter()
        .map(|option| {
            let flag = match option.as_str() {
                "fast_math" | "use_fast_math" => "--use_fast_math".to_owned(),
                "extra-device-vectorization" => "--extra-device-vectorization".to_owned(),
                "lineinfo" => "--generate-line-info".to_owned(),
                other => other
                    .strip_prefix("maxrregcount=")
                    .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
                    .and_then(|number| number.parse().ok())
                    .filter(|number: &u32| (16..=255).contains(number))
                    .map(|number| format!("--maxrregcount={number}"))
                    .ok_or_else(|| {
                        KernelError::Inconsistent(format!(
                            "option `{other}` is not one of maxrregcount=N (16 to 255), use_fast_math, \
                             extra-device-vectorization, lineinfo"
                        ))
                    })?,
            };
            Ok(flag)
        })
        .collect()
}

/// What Triton's compiler is told beside a launch's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TritonOptions {
    /// Registers that a thread may have.
    pub maxnreg: Option<u32>,
    /// Whether a product and a sum may become one instruction, rounded once.
    pub fp_fusion: bool,
}

/// What Triton is given for the options of a Triton file.
///
/// # Errors
/// An option that is not among those allowed.
pub fn triton_options(options: &[String]) -> Result<TritonOptions, KernelError> {
    let mut all = TritonOptions { maxnreg: None, fp_fusion: true };
    for option in options {
        match option.strip_prefix("maxnreg=") {
            Some(number) => {
                let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                all.maxnreg = number.parse().ok().filter(|number| plain && (16..=255).contains(number));
                if all.maxnreg.is_some() {
                    continue;
                }
            }
            None if option == "no_fp_fusion" => {
                all.fp_fusion = false;
                continue;
            }
            None => {}
        }
        return Err(KernelError::Inconsistent(format!(
            "option `{option}` is not one of maxnreg=N (16 to 255), no_fp_fusion"
        )));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(arch: &[&str]) -> Vec<String> {
        arch.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_plus_takes_later_gpus_and_nothing_else_does() {
        for (arch, fitting) in [
            (vec![], vec![75, 80, 86, 90, 100, 120]),
            (vec!["sm_80+"], vec![80, 86, 90, 100, 120]),
            (vec!["sm_90"], vec![90]),
            (vec!["sm_90a"], vec![90]),
            (vec!["sm_100a", "sm_90a"], vec![90, 100]),
            (vec!["sm_86", "sm_100+"], vec![86, 100, 120]),
            (vec!["native"], vec![]),
        ] {
            let found: Vec<u32> =
                [75, 80, 86, 90, 100, 120].into_iter().filter(|cc| fits_arch(&list(&arch), *cc)).collect();
            assert_eq!(found, fitting, "{arch:?}");
        }
    }

    #[test]
    fn specific_instructions_are_compiled_for_only_where_they_are_asked_for() {
        assert_eq!(target_arch(&list(&["sm_90a"]), 90), "sm_90a");
        assert_eq!(target_arch(&list(&["sm_80+", "sm_90a"]), 90), "sm_90a");
        assert_eq!(target_arch(&list(&["sm_80+", "sm_90a"]), 86), "sm_86");
        assert_eq!(target_arch(&list(&["sm_80+"]), 90), "sm_90");
        assert_eq!(target_arch(&[], 100), "sm_100");
        assert_eq!(target_arch(&list(&["sm_100a"]), 100), "sm_100a");
    }

    #[test]
    fn a_file_for_another_gpu_says_which() {
        let front = |arch: &str| {
            let text = format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\narch = {arch}\n---*/");
            crate::kernel::KernelFile::parse(&text).expect("parses").front
        };
        assert!(front("[\"sm_80+\"]").check_arch(90).is_ok());
        let error = front("[\"sm_90a\"]").check_arch(80).expect_err("another").to_string();
        assert!(error.ends_with("it is for sm_90a; this device is sm_80"), "{error}");
        for wrong in ["native", "sm_90a+", "sm_", "sm_9", "sm_080", "sm_1000", "90", "sm_90f", "sm_9 0", "sm_9x0"] {
            let error = front(&format!("[\"sm_80+\", \"{wrong}\"]")).check_arch(90).expect_err(wrong).to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn only_known_options_reach_the_compiler() {
        let given = list(&["maxrregcount=128", "use_fast_math", "extra-device-vectorization", "lineinfo"]);
        let flags = ["--maxrregcount=128", "--use_fast_math", "--extra-device-vectorization", "--generate-line-info"];
        assert_eq!(nvrtc_options(&given).expect("allowed"), flags);
        for wrong in
            ["-DX=1", "maxrregcount=", "maxrregcount=8", "maxrregcount=+64", "maxrregcount=256", "-I/", "-O0", ""]
        {
            assert!(nvrtc_options(&list(&[wrong])).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_architecture_or_not(text in "\\PC{0,12}", cc in 0u32..200) {
            let _ = fits_arch(std::slice::from_ref(&text), cc);
            let made = target_arch(&[format!("sm_{text}")], cc);
            prop_assert!(made.starts_with("sm_"));
            let _ = nvrtc_options(&[text]);
        }
    }
}
