//! The same kernels for other architectures than the judged device's: compiled, and never judged.

use super::code::{Making, launches};
use super::write::Files;
use super::{ExportError, Unjudged};
use crate::backend::cuda;
use crate::kernel::{Facts, target_arch};

/// Compute capabilities, and bytes of shared memory that a block may have there.
const SHARED: [(u32, i64); 10] = [
    (75, 64 << 10),
    (80, 163 << 10),
    (86, 99 << 10),
    (87, 163 << 10),
    (89, 99 << 10),
    (90, 227 << 10),
    (100, 227 << 10),
    (103, 227 << 10),
    (120, 99 << 10),
    (121, 99 << 10),
];

/// Multiprocessors and bytes of L2 of two devices: devices of one architecture differ in both, so that a kernel that looks at either is
/// for one device alone.
const UNLIKE: [(i64, i64); 2] = [(132, 50 << 20), (58, 6 << 20)];

/// The compute capability that `sm_80` or `sm_90a` is of. The letter says nothing: where a kernel's file asks for what `sm_90a` has, a 9.0
/// has it.
///
/// # Errors
/// A sentence with the names that there are.
pub fn capability(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("sm_").map(|rest| rest.strip_suffix('a').unwrap_or(rest));
    let number: Option<u32> = number.and_then(|number| number.parse().ok());
    number.filter(|number| SHARED.iter().any(|(known, _)| known == number)).ok_or_else(|| {
        let known: Vec<String> = SHARED.iter().map(|(known, _)| format!("sm_{known}")).collect();
        format!("it is no architecture known here; there are {}", known.join(", "))
    })
}

/// A kernel for each of `others`, or why there is none. `scratch` is what its launches ask for where it was judged.
pub(super) fn unjudged(
    compiler: &cuda::Compiler,
    others: &[u32],
    making: &Making<'_>,
    scratch: &[usize],
    files: &mut Files<'_>,
) -> Vec<Unjudged> {
    let one = |capability: u32| {
        let arch = target_arch(&making.file.front.arch, capability);
        match made(compiler, capability, making, scratch, files) {
            Ok(launches) => Unjudged { capability, arch, launches, why_not: None },
            Err(error) => Unjudged { capability, arch, launches: Vec::new(), why_not: Some(why(&error)) },
        }
    };
    others.iter().copied().map(one).collect()
}

/// The first line of what is wrong; a compiler goes on for pages.
fn why(error: &ExportError) -> String {
    let text = match error {
        ExportError::Compile { why, .. } => why.clone(),
        ExportError::Kernel { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it does not compile").trim().to_owned()
}

fn made(
    compiler: &cuda::Compiler,
    capability: u32,
    making: &Making<'_>,
    scratch: &[usize],
    files: &mut Files<'_>,
) -> Result<Vec<super::Launch>, ExportError> {
    let Making { name, op, file, shape, .. } = *making;
    let fails = |why: &str| ExportError::Compile { name: name.to_owned(), why: why.to_owned() };
    let wrong = |source| ExportError::Kernel { name: name.to_owned(), source };
    let shared = SHARED.iter().find(|(known, _)| *known == capability).map(|(_, shared)| *shared);
    let shared = shared.ok_or_else(|| fails("this architecture is not known here"))?;
    let facts = |(sms, l2): (i64, i64)| -> Facts {
        let facts = [("SMS", sms), ("SMEM_MAX", shared), ("CC", i64::from(capability)), ("L2", l2)];
        facts.map(|(name, value)| (name.to_owned(), value)).into()
    };
    let [first, second] = UNLIKE.map(facts);
    let resolution = file.resolve(shape, making.resolution.dtype, &first).map_err(wrong)?;
    let ints = op.ints(shape)?;
    let planned = |facts: &Facts| file.launches(op, &ints, &resolution, facts).map_err(wrong);
    if resolution != file.resolve(shape, making.resolution.dtype, &second).map_err(wrong)?
        || planned(&first)? != planned(&second)?
    {
        return Err(fails("its launches depend on the number of multiprocessors or on the L2 of one device"));
    }
    if resolution.scratch_elements != making.resolution.scratch_elements {
        return Err(fails("it needs other scratch there"));
    }
    let there = Making { resolution: &resolution, facts: &first, ..*making };
    let (launches, own_scratch) = launches(compiler, capability, &there, files)?;
    if own_scratch != scratch {
        return Err(fails("its code needs other scratch there"));
    }
    Ok(launches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_is_named_as_front_matter_names_it() {
        assert_eq!([capability("sm_80"), capability("sm_90a"), capability("sm_90")], [Ok(80), Ok(90), Ok(90)]);
        for text in ["80", "sm_", "sm_81", "sm_90aa", "native"] {
            assert!(capability(text).is_err_and(|why| why.contains("sm_120")), "{text}");
        }
    }
}
