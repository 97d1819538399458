//! Lists the tensors of a checkpoint. Only headers are read, whatever the size of the file.
//!
//! ```text
//! cargo run --release -p zonos-examples --example inspect_checkpoint
//! cargo run --release -p zonos-examples --example inspect_checkpoint -- model.pth
//! ```

use zonos::{Checkpoint, demo::DemoCheckpoint};

fn main() -> anyhow::Result<()> {
    let demo = DemoCheckpoint::create()?;
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| demo.model().display().to_string());

    let checkpoint = Checkpoint::open(&path)?;
    println!("{}: {}", checkpoint.format(), checkpoint.model_kind());
    for name in checkpoint.names() {
        if let Some(info) = checkpoint.info(name) {
            println!("{name}  {:?}  {:?}", info.dtype, info.shape);
        }
    }
    Ok(())
}
