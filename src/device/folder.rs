//! The name of a product as a folder of kernels.

/// What the machine says of trademarks, which nobody wants in a path.
const MARKS: [&str; 3] = ["(R)", "(TM)", "(C)"];

/// The folder for kernels that were tuned on a device of this product name: `Intel(R) Xeon(R) Processor` gives
/// `intel-xeon-processor`, `NVIDIA H200` gives `nvidia-h200`. Small letters, digits and single `-` only.
///
/// It names the product and not the very device (as [`super::DeviceCard::key`] does): what was tuned on one H200 is as good on
/// another.
#[must_use]
pub fn kernel_folder(device: &str) -> String {
    let bare = MARKS.iter().fold(device.to_owned(), |name, mark| name.replace(mark, " "));
    let words = bare.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    if name.is_empty() { "device".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_becomes_a_plain_folder_name() {
        for (device, folder) in [
            ("Intel(R) Xeon(R) Processor", "intel-xeon-processor"),
            ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core-processor"),
            ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", "intel-core-i7-8550u-cpu-1-80ghz"),
            ("NVIDIA H200", "nvidia-h200"),
            ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
            ("../..", "device"),
            ("", "device"),
            ("龙芯", "device"),
        ] {
            assert_eq!(kernel_folder(device), folder, "{device}");
        }
    }
}
