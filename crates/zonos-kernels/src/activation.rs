//! Activations that a dense layer can end in.

/// What [`ops::dense`](crate::ops::dense) applies behind its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `x (1 + erf(x / sqrt 2)) / 2`, exact forward and backward. Source: Hendrycks and Gimpel 2016,
    /// arXiv:1606.08415.
    Gelu,
    /// `x / (1 + exp(-x))`, also called swish. Source: Elfwing et al. 2017, arXiv:1702.03118.
    Silu,
}

/// How the two halves of a gated feed-forward block lie in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOrder {
    /// What is gated, then its gates.
    UpThenGate,
    /// A gate, then what it gates, value by value.
    Interleaved,
}
