//! What vendors promise of their GPUs (`catalogue.toml`), to be shown beside what is measured.

use std::sync::LazyLock;

use serde::Deserialize;

/// A vendor's figures of one product. None of them enters a judgement.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nameplate {
    /// The product.
    pub name: String,
    /// Words of the device's own name: all of one list.
    #[serde(rename = "match")]
    words: Vec<Vec<String>>,
    /// Memory, GB (1e9 bytes).
    pub memory_gb: f64,
    /// Memory bandwidth, GB/s.
    pub memory_gb_s: f64,
    /// Half precision accumulated in single, dense, TFLOP/s.
    pub fp16: f64,
    /// bfloat16, dense, TFLOP/s.
    pub bf16: f64,
    /// Single precision rounded to ten bits, dense, TFLOP/s; `None` where the hardware has none.
    #[serde(default)]
    pub tf32: Option<f64>,
    /// Single precision, TFLOP/s.
    pub fp32: f64,
    /// Double precision, TFLOP/s.
    pub fp64: f64,
    /// The vendor's publication, with its address.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    device: Vec<Nameplate>,
}

/// Every row. The text is part of the program, and a test reads it: it always parses.
static ROWS: LazyLock<Vec<Nameplate>> = LazyLock::new(|| {
    toml::from_str::<Catalogue>(include_str!("catalogue.toml"))
        .map_or_else(|_| Vec::new(), |catalogue| catalogue.device)
});

/// Words that distinguish no products.
const VENDORS: [&str; 5] = ["nvidia", "amd", "geforce", "instinct", "gpu"];

/// The figures of the device that calls itself `name` (`NVIDIA H100 80GB HBM3`): of the rows whose words are all in the name,
/// the one with most of them. A word too many (`Ti`, `SUPER`, `MIG`, `Laptop`) makes it another product, which has none.
#[must_use]
pub fn nameplate(name: &str) -> Option<&'static Nameplate> {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let fitting = ROWS.iter().flat_map(|row| row.words.iter().map(move |wanted| (row, wanted)));
    let all_there = fitting.filter(|(row, wanted)| {
        wanted.iter().all(|word| words.contains(&word.as_str()))
            && words.iter().all(|word| wanted.iter().any(|other| other == word) || row.says_nothing_new(word))
    });
    all_there.max_by_key(|(_, wanted)| wanted.len()).map(|(row, _)| row)
}

impl Nameplate {
    /// Whether a word beyond those that were looked for is true of this product anyway.
    fn says_nothing_new(&self, word: &str) -> bool {
        let memory = word.strip_suffix("gb").and_then(|number| number.parse::<f64>().ok());
        VENDORS.contains(&word) || word.starts_with("hbm") || memory == Some(self.memory_gb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(name: &str) -> Option<&'static str> {
        nameplate(name).map(|row| row.name.as_str())
    }

    #[test]
    fn devices_find_their_own_row_by_the_names_they_give_themselves() {
        let names = [
            ("NVIDIA H200", "H200 SXM"),
            ("NVIDIA H200 NVL", "H200 NVL"),
            ("NVIDIA H100 80GB HBM3", "H100 SXM"),
            ("NVIDIA H100 PCIe", "H100 PCIe"),
            ("NVIDIA H100 NVL", "H100 NVL"),
            ("NVIDIA H20", "H20"),
            ("NVIDIA B200", "B200"),
            ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB"),
            ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
            ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"),
            ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA L40", "L40"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA A30", "A30"),
            ("NVIDIA GeForce RTX 5090", "RTX 5090"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA GeForce RTX 4080", "RTX 4080"),
            ("NVIDIA GeForce RTX 3090", "RTX 3090"),
            ("NVIDIA GeForce RTX 3080", "RTX 3080 10 GB"),
            ("NVIDIA RTX A6000", "RTX A6000"),
            ("AMD Instinct MI300X", "MI300X"),
            ("AMD Instinct MI325X", "MI325X"),
            ("AMD Instinct MI350X", "MI350X"),
            ("AMD Instinct MI355X", "MI355X"),
        ];
        for (name, row) in names {
            assert_eq!(found(name), Some(row), "{name}");
        }
        assert_eq!(names.len(), ROWS.len(), "every row is found by somebody");
        assert_eq!(found("nvidia h200 141gb hbm3e"), Some("H200 SXM"));
    }

    #[test]
    fn other_products_with_similar_names_have_no_row() {
        for name in [
            "",
            "NVIDIA",
            "NVIDIA H100",
            "NVIDIA H200 MIG 1g.18gb",
            "NVIDIA H20 141GB HBM3e",
            "NVIDIA H20-3e",
            "NVIDIA GH200 480GB",
            "NVIDIA GeForce RTX 4080 SUPER",
            "NVIDIA GeForce RTX 3080 Ti",
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA A10G",
            "NVIDIA A100X",
            "NVIDIA RTX 6000 Ada Generation",
            "Tesla V100-SXM2-16GB",
            "AMD Instinct MI300A",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn every_row_has_a_source_and_figures_that_can_be_true() {
        assert_eq!(ROWS.len(), 26);
        for row in ROWS.iter() {
            let name = &row.name;
            assert!(row.source.contains("https://") && row.source.len() > 30, "{name}");
            assert!((8.0..=512.0).contains(&row.memory_gb), "{name}");
            assert!((250.0..=10_000.0).contains(&row.memory_gb_s), "{name}");
            assert!((50.0..=3000.0).contains(&row.fp16) && row.fp16.total_cmp(&row.bf16).is_eq(), "{name}");
            assert!((10.0..=200.0).contains(&row.fp32) && row.fp32 < row.fp16, "{name}");
            assert!((0.4..=200.0).contains(&row.fp64) && row.fp64 <= row.fp32, "{name}");
            if let Some(tf32) = row.tf32 {
                let ratio = row.fp16 / tf32;
                assert!((1.9..=2.1).contains(&ratio) && tf32 >= row.fp32 * 0.99, "{name}: {ratio}");
            }
        }
    }

    #[test]
    fn no_two_rows_are_the_same_product() {
        for (index, row) in ROWS.iter().enumerate() {
            for other in &ROWS[..index] {
                assert!(row.name != other.name && row.words.iter().all(|list| !other.words.contains(list)));
            }
        }
    }

    proptest! {
        #[test]
        fn any_name_has_a_row_or_none(name in "\\PC{0,40}") {
            let _ = nameplate(&name);
        }
    }
}
