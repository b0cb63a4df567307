//! What recipes of image classifiers say beside those of all models.

use crate::recipe::{Problem, Range, Recipe, family_recipe, require, section};
use bessemer_data::{CropDraw, Exif, Resampling};
use bessemer_models::resnet::StrideIn;
use bessemer_models::{Architecture, InitScheme, MixupWeight, find};
use bessemer_nn::{Padding, PixelScale};

/// Pixels of a side.
const PIXELS: f64 = 8192.0;

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        /// Number of classes of the model.
        pub num_classes: u64 => Range::closed(1.0, 1e6);
        /// Padding of strided convolutions and pooling.
        pub padding: Padding = Padding::Symmetric;
        /// The convolution of a bottleneck block that carries the block's stride.
        pub stride_in: StrideIn = StrideIn::Conv2;
        /// Start the last batch-norm gamma of each residual block at 0 instead of 1.
        pub zero_init_last_gamma: bool = false;
        /// Distribution of the initial weights.
        pub init: InitScheme = InitScheme::Torch;
        /// Added to the variance in batch norms before the root is taken.
        pub bn_eps: f64 = 1e-5 => Range::closed(0.0, 1.0);
        /// Weight of the newest batch in the running statistics of batch norms; 1 less TensorFlow's momentum.
        pub bn_momentum: f64 = 0.1 => Range::closed(0.0, 1.0);
        /// Share of the classifier's inputs that training leaves out.
        pub dropout: f64 = 0.0 => Range::below(0.0, 1.0);
        /// Stochastic depth of EfficientNets: the share of samples for which training leaves out the last residual block; of
        /// earlier ones in proportion to their number.
        pub drop_path: f64 = 0.0 => Range::below(0.0, 1.0);
    }
}

section! {
    /// In `[data]`.
    pub(crate) struct ImageFields {
        /// Height and width in training, pixels.
        pub image_size: u64 = 224 => Range::closed(8.0, PIXELS);
        /// Range of the random crop's area, as a fraction of the image's.
        pub crop_scale: [f64; 2] = [0.08, 1.0] => Range::above(0.0, 1.0);
        /// Range of the random crop's width over its height.
        pub crop_ratio: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0] => Range::closed(0.01, 100.0);
        /// How area and ratio of the random crop are drawn.
        pub crop_draw: CropDraw = CropDraw::Torch;
        /// How pixels are computed where images are resized.
        pub resampling: Resampling = Resampling::Antialias;
        /// Probability of a horizontal flip.
        pub flip: f64 = 0.5 => Range::closed(0.0, 1.0);
        /// Decode JPEG files at 1/2, 1/4 or 1/8 of their scale where a random crop has so many pixels for each one of the sample.
        pub scaled_decode: bool = false;
        /// Short side before the centre crop of evaluation, pixels.
        pub eval_resize: u64 = 256 => Range::closed(8.0, PIXELS);
        /// Height and width in evaluation, pixels.
        pub eval_image_size: u64 = 224 => Range::closed(8.0, PIXELS);
        /// Per channel, of values in `[0, 1]`.
        pub mean: [f64; 3] = PixelScale::IMAGENET.mean => Range::closed(0.0, 1.0);
        /// Standard deviation of each channel of the pixels, which are divided by it.
        pub std: [f64; 3] = PixelScale::IMAGENET.std => Range::above(0.0, 1.0);
        /// What is done with the EXIF orientation of images in files: they are turned (apply), or stay as they are stored (ignore).
        pub exif: Exif = Exif::Ignore;
        /// Added to every label; 1 for models whose class 0 is the background.
        pub label_offset: u64 = 0 => Range::closed(0.0, 1.0);
        /// Outputs behind those of the classes, which stand for none; 1 for NVIDIA's ResNet-50 of TensorFlow 1, which has 1001 outputs and labels
        /// of 0 to 999.
        pub spare_outputs: u64 = 0 => Range::closed(0.0, 1.0);
    }
}

section! {
    /// In `[train]`.
    pub(crate) struct LabelFields {
        /// Share of the label's probability that is spread over all classes.
        pub label_smoothing: f64 = 0.0 => Range::below(0.0, 1.0);
        /// Parameter of mixup's Beta(alpha, alpha); 0 for no mixup.
        pub mixup_alpha: f64 = 0.0 => Range::closed(0.0, 100.0);
        /// What each sample of a micro-batch is mixed with, and by which share.
        pub mixup_form: MixupWeight = MixupWeight::Batch;
        /// Leave out the last batch of an epoch if it is not full.
        pub drop_last: bool = true;
    }
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct ClassifierRecipe {
        "model" => pub model: ModelFields,
        "data" => pub images: ImageFields,
        "train" => pub labels: LabelFields,
    }
    check check;
}

impl ClassifierRecipe {
    /// Outputs of the classes that data can have, in the order of labels; the others stand for none.
    pub(crate) fn class_outputs(&self) -> std::ops::Range<usize> {
        let ends = [self.images.label_offset, self.model.num_classes.saturating_sub(self.images.spare_outputs)];
        ends[0] as usize..ends[1] as usize
    }
}

fn check(own: &ClassifierRecipe, recipe: &Recipe) -> Result<(), Problem> {
    let (model, images) = (&own.model, &own.images);
    require(!own.class_outputs().is_empty(), "model.num_classes", || {
        let (offset, spare) = (images.label_offset, images.spare_outputs);
        format!("more than data.label_offset and data.spare_outputs together, which are {}", offset + spare)
    })?;
    let has_drop_path =
        find(&recipe.model.name).is_ok_and(|spec| matches!(spec.architecture, Architecture::EfficientNet(_)));
    require(model.drop_path == 0.0 || has_drop_path, "model.drop_path", || {
        format!("{} is only valid for EfficientNets, not for {}", model.drop_path, recipe.model.name)
    })?;
    for (path, [low, high]) in [("data.crop_scale", images.crop_scale), ("data.crop_ratio", images.crop_ratio)] {
        require(low <= high, path, || format!("[{low}, {high}] must be in ascending order"))?;
    }
    let (resize, size) = (images.eval_resize, images.eval_image_size);
    require(resize >= size, "data.eval_resize", || format!("{resize} is smaller than data.eval_image_size = {size}"))
}
