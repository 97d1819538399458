//! The released 28-layer configuration: names and shapes without allocating, and a run from a
//! sparse, memory-mapped bf16 file of real size.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::Device;
use zonos_checkpoint::{Checkpoint, LoadOptions, plan};
use zonos2::{
    GenerateOptions, Prompt, SamplerOptions, Sequence, Zonos2, Zonos2Config, name_map, tensor_specs,
};

/// Published counts, `spec` of the release: Zyphra/ZONOS2 `params.json`.
const TENSORS: usize = 507;
const PARAMETERS: usize = 7_668_118_208;

/// Writes a safetensors file whose header lists the released tensors in bf16 and whose values are a
/// hole: zeros that take no disk space.
fn sparse_checkpoint(dir: &Path, config: &Zonos2Config) {
    let mut offset = 0;
    let mut header = String::from("{");
    for spec in tensor_specs(config) {
        let bytes = 2 * spec.shape.iter().product::<usize>();
        header.push_str(&format!(
            "{}\"{}\":{{\"dtype\":\"BF16\",\"shape\":{:?},\"data_offsets\":[{offset},{}]}}",
            if offset == 0 { "" } else { "," },
            spec.name,
            spec.shape,
            offset + bytes,
        ));
        offset += bytes;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = File::create(dir.join("model.safetensors")).expect("temporary file");
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("writes");
    file.write_all(header.as_bytes()).expect("writes");
    file.set_len((8 + header.len() + offset) as u64)
        .expect("sparse file");
    std::fs::write(dir.join("params.json"), config.to_json().to_string()).expect("writes");
}

#[test]
fn the_released_tensors_are_those_that_were_published() {
    let specs = tensor_specs(&Zonos2Config::released());
    assert_eq!(specs.len(), TENSORS);
    let parameters: usize = specs
        .iter()
        .map(|s| s.shape.iter().product::<usize>())
        .sum();
    assert_eq!(parameters, PARAMETERS);
    let shape = |name: &str| &specs.iter().find(|s| s.name == name).expect(name).shape;
    assert_eq!(
        shape("layers.3.feed_forward.experts.w13"),
        &[16, 6144, 2048]
    );
    assert_eq!(
        shape("layers.27.feed_forward.w_in.weight"),
        &[2, 3072, 2048]
    );
    assert!(
        specs
            .iter()
            .all(|s| s.name != "layers.3.feed_forward.router.router_states_scale")
    );
    assert_eq!(
        shape("layers.4.feed_forward.router.router_states_scale"),
        &[128]
    );
}

#[test]
fn a_sparse_file_of_real_size_opens_in_little_memory_and_generates() {
    let config = Zonos2Config::released();
    let dir = tempfile::tempdir().expect("temporary folder");
    sparse_checkpoint(dir.path(), &config);

    let before = resident_megabytes();
    let checkpoint = Checkpoint::open(dir.path()).expect("opens");
    let report = plan(&checkpoint, &name_map(&config), &tensor_specs(&config)).expect("plans");
    assert!(report.is_clean(), "{report}");
    assert_eq!(checkpoint.total_bytes(), 2 * PARAMETERS as u64);
    let (model, _) = Zonos2::load_with(
        &checkpoint,
        config,
        &LoadOptions::default(),
        &Device::flex(),
    )
    .expect("loads");
    if let (Some(before), Some(after)) = (before, resident_megabytes()) {
        println!(
            "opening and loading 15.3 GB took {} MB of memory",
            after - before
        );
        assert!(
            after - before < 100,
            "weights were copied: {} MB",
            after - before
        );
    }

    let prompt = Prompt::builder(model.config())
        .text("Hi")
        .build()
        .expect("prompt");
    let sequence = Sequence::from_prompt(&prompt, None).expect("sequence");
    let options = GenerateOptions {
        sampler: SamplerOptions::greedy(),
        max_frames: Some(2),
        ..GenerateOptions::default()
    };
    let done = model
        .generate(&[sequence], &[options], &mut |_| ControlFlow::Continue(()))
        .expect("generates");
    // All weights are zero, so all logits are equal, and the lowest id wins: 0, then the penalty on
    // zero logits changes nothing.
    assert_eq!(done[0].frames.values(), [0; 18]);
}

/// Resident anonymous memory of this process, where the system tells: mapped files do not count.
fn resident_megabytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("RssAnon:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<i64>().ok()? / 1024)
}
