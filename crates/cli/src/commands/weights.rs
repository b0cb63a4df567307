use crate::args::{CheckpointArgument, Common, at_least_one, model};
use crate::output::print;
use bessemer_bench::workload::DetectorOutputs;
use bessemer_train::tasks::family::NetworkForm;
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::{ConvertOptions, Names, convert_weights};
use clap::{Args, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer weights convert resnet50-dle.safetensors resnet50.safetensors --from dle
  bessemer weights convert resnet50-torchvision.pth resnet50.safetensors
  bessemer weights convert tf1/model.ckpt-112590 resnet50.safetensors --from tensorflow
  bessemer weights convert runs/NAME resnet50.safetensors --to timm
  bessemer weights convert runs/NAME bert-base/ --to huggingface
  bessemer weights convert runs/NAME mask-rcnn.onnx --to onnx";

/// Work with files of weights
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Convert(Convert),
}

/// Convert weights to the names of another suite, or to ONNX, after checking that they fit a model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Convert {
    /// A .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is executed), a checkpoint, a run, a folder with
    /// config.json and model.safetensors, pytorch_model.bin or tf_model.h5, an HDF5 file of Keras, or a checkpoint of TensorFlow
    /// (its prefix, one of its files, its folder, or a SavedModel)
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to write, .safetensors or .onnx, or for huggingface the folder, which must not exist
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgument,
    /// Whose names the input has: torchvision, timm, dle (NVIDIA DeepLearningExamples), huggingface, or tensorflow for a checkpoint
    /// of TensorFlow [default: any of them]
    #[arg(long, value_name = "SUITE", help_heading = "Names")]
    pub from: Option<Names>,
    /// Whose names the output has: bessemer or timm (the same: timm's, and of EfficientDets those of effdet; timm loads such a file
    /// strictly), torchvision, dle, huggingface (BERT and ELECTRA, in a folder); or onnx: the
    /// network of inference with its weights, for any batch, as an ONNX file (fp32; a classifier takes normalised NCHW images)
    #[arg(long, value_name = "SUITE", default_value = "bessemer", help_heading = "Names")]
    pub to: Names,
    /// The model of the weights [default: the one that they fit]
    #[arg(long, value_parser = model, help_heading = "Names")]
    pub model: Option<ZooModel>,
    /// Pixels of a side of the images that a classifier in an ONNX file takes [default: those of evaluation]
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "ONNX")]
    pub image_size: Option<usize>,
    /// Tokens of a sequence that a model of text in an ONNX file takes [default: 128, or 384 for questions]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "ONNX")]
    pub sequence_length: Option<usize>,
    /// What an EfficientDet in an ONNX file ends with: detections, or the outputs of the network for each level, without
    /// suppression [default: detections]
    #[arg(long, value_name = "detections|network", help_heading = "ONNX")]
    pub outputs: Option<DetectorOutputs>,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let Command::Convert(convert) = &options.command;
    let settings = ConvertOptions {
        from: convert.from,
        to: convert.to,
        model: convert.model.as_ref().map(ZooModel::name),
        form: NetworkForm {
            image_size: convert.image_size,
            sequence_length: convert.sequence_length,
            outputs: convert.outputs,
        },
    };
    let input = convert.checkpoint.locate(&convert.input, common)?.path;
    let converted = convert_weights(&input, &convert.output, &settings)?;
    print(&format!("{}: {}, {} tensors\n", convert.output.display(), converted.model, converted.tensors))
}
