//! The instruction set that `$ZONOS_ISA` asks for.

/// What to say when it is none that can be had; the kernels take their best then, without a word.
pub(crate) fn warning() -> Option<String> {
    let asked = std::env::var_os("ZONOS_ISA").filter(|asked| !asked.is_empty())?;
    let (here, used) = zonos_kernels::instruction_sets();
    // A build without CPU kernels has none to choose from.
    if here.is_empty() || here.iter().any(|name| asked == *name) {
        return None;
    }
    Some(format!(
        "ZONOS_ISA is '{}', which is unknown or not available on this processor; {used} is used instead; available are {}",
        asked.to_string_lossy(),
        here.join(", ")
    ))
}
