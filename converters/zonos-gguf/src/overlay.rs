//! Files that hold only what differs from another one.

use std::io::Write;

use crate::{GgufError, GgufFile, GgufWriter, NewTensor};

/// Writes `base` with the metadata of `over`, and with its tensors in place of those of the same name.
/// The order is that of `base`. How several quantised forms of a model are kept small.
///
/// # Errors
///
/// A tensor of `over` that `base` lacks; whatever [`GgufWriter`] refuses.
pub fn overlay<A: AsRef<[u8]>, B: AsRef<[u8]>, W: Write>(
    base: &GgufFile<A>,
    over: &GgufFile<B>,
    out: W,
    out_file: &str,
) -> Result<W, GgufError> {
    if let Some(stray) = over
        .tensors()
        .iter()
        .find(|t| base.tensor(t.name()).is_none())
    {
        return Err(GgufError::NoSuchTensor {
            file: base.file().into(),
            name: stray.name().into(),
        });
    }
    let tensors: Vec<NewTensor> = base
        .tensors()
        .iter()
        .map(|t| {
            let of = over.tensor(t.name()).unwrap_or(t);
            NewTensor {
                name: t.name().into(),
                dims: of.dims().to_vec(),
                ggml_type: of.ggml_type(),
            }
        })
        .collect();
    let mut writer = GgufWriter::new(out, out_file, over.metadata(), &tensors)?;
    for t in base.tensors() {
        let bytes = match over.tensor(t.name()) {
            Some(of) => over.tensor_bytes(of)?,
            None => base.tensor_bytes(t)?,
        };
        writer.write(t.name(), bytes)?;
    }
    writer.finish()
}
