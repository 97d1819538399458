//! What the model reads.

use burn::tensor::Tensor;

use crate::TeacherError;

/// Input features of one clip, with a mask over its tokens.
///
/// A masked token reads as zeros and is seen by no other.
#[derive(Debug, Clone)]
pub struct Features {
    values: Tensor<2>,
    mask: Vec<bool>,
}

impl Features {
    /// `values [tokens, input_dim]` f32 on the model's device; `mask [tokens]` is true for tokens of
    /// the signal.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Features`] when the mask has another length, or leaves no token.
    pub fn new(values: Tensor<2>, mask: Vec<bool>) -> Result<Self, TeacherError> {
        let [tokens, _] = values.dims();
        if mask.len() != tokens {
            return Err(TeacherError::Features(format!(
                "a mask of {} tokens, expected {tokens}",
                mask.len()
            )));
        }
        if !mask.contains(&true) {
            return Err(TeacherError::Features(format!(
                "{tokens} tokens, none of them unmasked"
            )));
        }
        Ok(Self { values, mask })
    }

    /// `[tokens, input_dim]`.
    pub fn values(&self) -> Tensor<2> {
        self.values.clone()
    }

    /// `[tokens]`: false for masked ones.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Number of tokens, masked ones included.
    pub fn tokens(&self) -> usize {
        self.mask.len()
    }
}
