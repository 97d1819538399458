//! What enters the first layer.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use zonos_nn::{BiasedLinear, Embedding};

/// Sum of one embedding a column: nine audio codebooks, then text. Padding ids are ordinary entries.
#[derive(Module, Debug)]
pub struct MultiEmbedding {
    pub(crate) embedders: Vec<Embedding>,
}

impl MultiEmbedding {
    /// `ids [rows, columns] -> [rows, dim]`, f32.
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let rows = ids.dims()[0];
        self.embedders
            .iter()
            .enumerate()
            .map(|(c, table)| {
                let column = ids.clone().slice([0..rows, c..c + 1]).reshape([rows]);
                table.forward(column)
            })
            .reduce(|sum, x| sum + x)
            .expect("a model has at least one codebook and the text column")
    }
}

/// Voice vector to model width: LDA (where the model has one), then a projection.
#[derive(Module, Debug)]
pub struct SpeakerProjection {
    pub(crate) speaker_lda_projection: Option<BiasedLinear>,
    pub(crate) speaker_projection: BiasedLinear,
}

impl SpeakerProjection {
    /// `vector [1, speaker_embedding_dim] -> [1, dim]`. The vector is not normalised.
    pub fn forward(&self, vector: Tensor<2>) -> Tensor<2> {
        let x = match &self.speaker_lda_projection {
            Some(lda) => lda.forward(vector),
            None => vector,
        };
        self.speaker_projection.forward(x)
    }
}
