//! Images with objects: boxes and masks follow the pixels, and batches hold them.

#[path = "common/shared.rs"]
mod shared;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bessemer_data::detection::{Framing, Object, ObjectLayout, ObjectMask, Objects};
use bessemer_data::shapes::{Scenes, draw_scene};
use bessemer_data::{
    Batch, DataError, Dataset, Image, ImageSamples, Loader, LoaderOptions, Philox, Placement, Purpose, Resampling,
    ResizeBuffers, SampleKey, SampleTarget, Sampler, SamplerOptions, Samples, Scratch, Split,
};
use serde_json::Value;

const LANDSCAPE: [u32; 2] = [160, 256];
const PORTRAIT: [u32; 2] = [256, 160];

fn rng(index: u64) -> Philox {
    Purpose::Augment.stream(9, 1, index)
}

fn framings() -> [Framing; 4] {
    [
        Framing { canvases: vec![LANDSCAPE, PORTRAIT], ..Framing::fit(LANDSCAPE) },
        Framing { flip: 1.0, ..Framing::fit([200, 200]) },
        Framing { jitter: Some((0.3, 2.0)), flip: 0.5, ..Framing::fit([128, 128]) },
        Framing { jitter: Some((0.3, 2.0)), ..Framing::efficientdet_train([128, 128], Resampling::HalfPixel) },
    ]
}

/// The sample data of COCO, read as far as these tests need it.
struct Coco {
    images: Vec<(PathBuf, [u32; 2], Vec<Object>)>,
    framing: Framing,
    classes: Vec<String>,
}

impl Coco {
    /// With masks of the objects that have one polygon.
    fn open(split: &str, framing: Framing, most: usize) -> Option<Coco> {
        let root = shared::shared("coco")?;
        let text = fs::read_to_string(root.join(format!("annotations/instances_{split}2017.json"))).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let mut objects: BTreeMap<u64, Vec<Object>> = BTreeMap::new();
        for annotation in json["annotations"].as_array().unwrap() {
            if annotation["iscrowd"] == 1 {
                continue;
            }
            let [x, y, width, height] = [0, 1, 2, 3].map(|i| annotation["bbox"][i].as_f64().unwrap());
            let polygons = annotation["segmentation"].as_array().unwrap();
            objects.entry(annotation["image_id"].as_u64().unwrap()).or_default().push(Object {
                bbox: [x, y, x + width, y + height],
                class: annotation["category_id"].as_u64().unwrap() as u32,
                mask: (polygons.len() == 1).then(|| rasterize(&polygons[0])),
            });
        }
        let images = json["images"].as_array().unwrap().iter().take(most).map(|image| {
            let path = root.join(format!("{split}2017")).join(image["file_name"].as_str().unwrap());
            let size = ["height", "width"].map(|side| image[side].as_u64().unwrap() as u32);
            (path, size, objects.remove(&image["id"].as_u64().unwrap()).unwrap_or_default())
        });
        Some(Coco { images: images.collect(), framing, classes: Vec::new() })
    }
}

/// Pixels whose centre is in the polygon, by the even-odd rule.
fn rasterize(polygon: &Value) -> ObjectMask {
    let numbers: Vec<f64> = polygon.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let points = numbers.as_chunks::<2>().0;
    let range = |axis: usize| {
        let of_axis = || points.iter().map(|point| point[axis]);
        of_axis().fold(f64::MAX, f64::min) as usize..of_axis().fold(0.0, f64::max).ceil() as usize
    };
    let (columns, rows) = (range(0), range(1));
    let mut pixels = Vec::new();
    for y in rows.clone() {
        for x in columns.clone() {
            let (x, y) = (x as f64 + 0.5, y as f64 + 0.5);
            let crossed = points
                .iter()
                .zip(points.iter().cycle().skip(1))
                .filter(|([x1, y1], [x2, y2])| (y1 <= &y) != (y2 <= &y) && x < x1 + (y - y1) / (y2 - y1) * (x2 - x1));
            pixels.push(crossed.count() % 2 == 1);
        }
    }
    ObjectMask { left: columns.start, top: rows.start, width: columns.len(), pixels }
}

impl Dataset for Coco {
    type Target = Objects;

    fn len(&self) -> usize {
        self.images.len()
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, index: usize) -> [usize; 2] {
        self.framing.canvas(self.images[index].1).map(|side| side as usize)
    }

    fn load(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Objects, DataError> {
        let (path, size, objects) = &self.images[index];
        let picture = Image::read(path)?;
        assert_eq!([picture.height as u32, picture.width as u32], *size);
        let placement = self.framing.place(*size, rng);
        placement.draw(&picture.pixels, *size, &mut scratch.resize, out);
        Ok(Objects::new(index as i32, objects.clone()).place(&placement))
    }

    fn source(&self, index: usize) -> String {
        self.images[index].0.display().to_string()
    }

    fn identity(&self) -> String {
        "coco".into()
    }
}

/// The image of a mask: white where the object is.
fn painted(mask: &ObjectMask, [height, width]: [u32; 2]) -> Vec<u8> {
    let (height, width) = (height as usize, width as usize);
    let white = |i: usize| if mask.contains(i % width, i / width) { 255 } else { 0 };
    (0..height * width).flat_map(|i| [white(i); 3]).collect()
}

/// Draws the image of each mask by the placement of its object, and compares it with the placed mask and box.
fn check_object(what: &str, object: &Object, size: [u32; 2], placement: &Placement) -> bool {
    let mask = object.mask.as_ref().expect("an object with a mask");
    let [height, width] = placement.canvas().map(|side| side as usize);
    let mut drawn = vec![9; height * width * 3];
    placement.draw(&painted(mask, size), size, &mut ResizeBuffers::default(), &mut drawn);
    let placed = Objects::new(0, vec![object.clone()]).place(placement);
    let Some(found) = placed.objects.first() else {
        assert!(drawn.chunks_exact(3).filter(|pixel| pixel[0] > 128).count() <= 4, "{what}: pixels without an object");
        return false;
    };
    let [x1, y1, x2, y2] = found.bbox;
    let found_mask = found.mask.as_ref().expect("the mask follows");
    let (mut clear, mut wrong) = (0, 0);
    for (i, pixel) in drawn.chunks_exact(3).enumerate() {
        let (x, y) = ((i % width) as f64, (i / width) as f64);
        // Pixels on the border of the object are a matter of the filter.
        if (64..192).contains(&pixel[0]) {
            continue;
        }
        let is_object = pixel[0] >= 192;
        clear += usize::from(is_object);
        wrong += usize::from(is_object != found_mask.contains(i % width, i / width));
        let is_inside = (x1 - 1.5..x2 + 0.5).contains(&x) && (y1 - 1.5..y2 + 0.5).contains(&y);
        assert!(!is_object || is_inside, "{what}: pixel {x}, {y} is outside the box {:?}", found.bbox);
    }
    assert!(wrong * 50 <= clear + 100, "{what}: {wrong} pixels differ from the mask, {clear} agree");
    true
}

#[test]
fn boxes_and_masks_follow_the_pixels() {
    let size = [96, 128];
    let whole = Framing::fit(size);
    let scenes = Scenes::new(5, Split::Train, 12, size, whole).unwrap();
    let mut image = vec![0; 96 * 128 * 3];
    let mut seen = [0; 4];
    for index in 0..12 {
        let objects = scenes.load(index, &mut rng(0), &mut Scratch::default(), &mut image).unwrap();
        for (number, framing) in framings().iter().enumerate() {
            let placement = framing.place(size, &mut rng(index as u64));
            for object in &objects.objects {
                seen[number] += usize::from(check_object(&format!("{framing:?}"), object, size, &placement));
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 20), "{seen:?}");
}

#[test]
fn annotations_of_coco_follow_the_pixels() {
    let Some(coco) = Coco::open("val", framings()[0].clone(), 12) else { return };
    let mut checked = 0;
    for (index, (path, size, objects)) in coco.images.iter().enumerate() {
        for framing in framings() {
            let placement = framing.place(*size, &mut rng(index as u64));
            for object in objects.iter().filter(|object| object.mask.is_some() && object.area() > 1000.0) {
                checked += usize::from(check_object(&path.display().to_string(), object, *size, &placement));
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn canvases_follow_the_shape_of_the_image() {
    let fit = &framings()[0];
    fit.check().unwrap();
    assert_eq!(fit.canvas([480, 640]), LANDSCAPE);
    assert_eq!(fit.canvas([640, 480]), PORTRAIT);
    assert_eq!(fit.canvas([500, 500]), LANDSCAPE, "of equal ones the first");
    let placement = fit.place([480, 640], &mut rng(0));
    assert_eq!((placement.size(), placement.canvas()), ([160, 213], LANDSCAPE));
    assert_eq!(fit.place([160, 256], &mut rng(0)).size(), LANDSCAPE, "what fits fills the canvas");
    assert_eq!(fit.place([3, 1000], &mut rng(0)).size(), [1, 256], "no side is empty");

    let jitter = Framing { jitter: Some((0.1, 2.0)), flip: 0.5, ..Framing::fit([128, 128]) };
    let placements: Vec<Placement> = (0..400).map(|index| jitter.place([480, 640], &mut rng(index))).collect();
    for placement in &placements {
        let [down, across] = placement.scale();
        assert!(down < 0.41 && (down / across - 1.0).abs() < 0.1, "both sides have one scale: {down}, {across}");
        assert!(placement.size().iter().all(|&side| (1..=128).contains(&side)));
        let [height, width] = placement.size().map(f64::from);
        for corner in [[0.0, 0.0], [width, height]] {
            let [x, y] = placement.origin(corner);
            assert!((-1e-6..640.0 + 1e-6).contains(&x) && (-1e-6..480.0 + 1e-6).contains(&y), "{corner:?}: {x}, {y}");
        }
    }
    let filled = placements.iter().filter(|placement| placement.size() == [128, 128]).count();
    assert!((80..250).contains(&filled), "{filled}");
}

#[test]
fn framings_are_checked() {
    for (framing, expected) in [
        (
            Framing { canvases: Vec::new(), ..Framing::fit([64, 64]) },
            "canvases is empty, expected at least one height and width",
        ),
        (Framing::fit([0, 64]), "image size is 0, expected 1 to 4096"),
        (Framing { flip: 2.0, ..Framing::fit([64, 64]) }, "flip probability is 2, expected 0 to 1"),
        (
            Framing { jitter: Some((2.0, 1.0)), ..Framing::fit([64, 64]) },
            "scale jitter is 2..1, expected two rising numbers above 0, at most 16",
        ),
    ] {
        assert_eq!(framing.check().unwrap_err().to_string(), expected);
        assert!(Scenes::new(0, Split::Val, 1, [64, 64], framing).is_err());
    }
}

fn batches<D: Dataset + 'static>(samples: Arc<ImageSamples<D>>, workers: usize) -> Vec<Batch> {
    let sampler = Sampler::new(samples.len(), SamplerOptions::eval(3)).unwrap();
    let mut loader = Loader::new(samples, sampler, LoaderOptions::new(workers, 7, 2)).unwrap();
    let mut batches = Vec::new();
    for _ in 0..2 {
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            batches.push(batch.clone());
            loader.recycle(batch.feeds);
        }
    }
    batches
}

#[test]
fn batches_hold_objects_behind_their_count_zeros() {
    let layout = ObjectLayout { max_objects: 4, first_class: 0, crop: Some(28) };
    let framing = Framing { jitter: Some((0.5, 1.5)), flip: 0.5, ..Framing::fit([64, 96]) };
    let scenes = Arc::new(Scenes::new(2, Split::Train, 11, [96, 96], framing).unwrap());
    let samples = Arc::new(ImageSamples::new(Arc::clone(&scenes), layout).unwrap());
    let all = batches(Arc::clone(&samples), 1);
    assert_eq!(all, batches(samples, 3), "whatever the workers");
    assert_ne!(all[0].feeds.f32("boxes"), all[4].feeds.f32("boxes"), "each epoch has its own placements");
    let mut dropped = 0;
    for batch in &all {
        let feeds = &batch.feeds;
        assert_eq!((feeds.u8("images").len(), feeds.u8("crops").len()), (3 * 64 * 96 * 3, 3 * 4 * 28 * 28));
        for row in 0..3 {
            let count = feeds.i32("count")[row] as usize;
            dropped += feeds.i32("dropped")[row];
            let boxes = feeds.f32("boxes")[row * 16..][..16].as_chunks::<4>().0;
            let [height, width] = [0, 1].map(|axis| feeds.f32("sizes")[2 * row + axis]);
            for [x1, y1, x2, y2] in &boxes[..count] {
                assert!(0.0 <= *x1 && x1 < x2 && x2 <= &width && 0.0 <= *y1 && y1 < y2 && y2 <= &height);
            }
            assert!(boxes[count..].iter().flatten().all(|&x| x == 0.0));
            assert!(feeds.i32("classes")[row * 4 + count..(row + 1) * 4].iter().all(|&class| class == 0));
            let masks = &feeds.u8("crops")[row * 4 * 784..][..4 * 784];
            assert!(masks[count * 784..].iter().all(|&value| value == 0));
            for mask in masks[..count * 784].chunks_exact(784) {
                assert!(mask.iter().any(|&value| value > 128), "a mask of a box with area has pixels");
            }
            if row >= batch.samples {
                assert_eq!((count, height, feeds.i32("ids")[row]), (0, 0.0, 0), "no sample is here");
            }
        }
    }
    assert!(dropped > 0, "some scenes have more shapes than there is room for");
}

#[test]
fn samples_state_ids_sizes_and_scales() {
    let layout = ObjectLayout { max_objects: 100, first_class: 0, crop: None };
    let framing = Framing::efficientdet_eval([64, 80], Resampling::Legacy);
    let scenes = Arc::new(Scenes::new(2, Split::Train, 3, [96, 120], framing).unwrap());
    let boxes_of = |index: usize| {
        let scene = draw_scene(2, Split::Train, index, 120, 96).unwrap();
        scene.objects.into_iter().map(|object| object.bbox).collect::<Vec<_>>()
    };
    let batch = &batches(Arc::new(ImageSamples::new(scenes, layout).unwrap()), 1)[0];
    assert_eq!(batch.feeds.i32("ids"), [1, 2, 3]);
    assert_eq!(batch.feeds.f32("sizes"), [64.0, 80.0, 64.0, 80.0, 64.0, 80.0]);
    assert_eq!(batch.feeds.f32("scales"), [1.5; 3], "pixels of the image for each pixel of the canvas");
    for index in 0..3 {
        let expected = boxes_of(index);
        assert_eq!(batch.feeds.i32("count")[index] as usize, expected.len());
        let found = batch.feeds.f32("boxes")[index * 400..].as_chunks::<4>().0;
        for (found, [x, y, width, height]) in found.iter().zip(expected) {
            let corners = [x, y, x + width, y + height].map(|side| (side / 1.5) as f32);
            assert!(found.iter().zip(corners).all(|(a, b)| (a - b).abs() < 1e-3), "{found:?}, {corners:?}");
        }
    }
}

#[test]
fn boxes_end_at_the_last_pixel_where_the_reference_has_it() {
    let whole = |framing: Framing| framing.place([64, 64], &mut rng(0)).bbox([-5.0, 3.0, 70.0, 64.0]);
    assert_eq!(whole(Framing::fit([64, 64])), Some([0.0, 3.0, 64.0, 64.0]));
    assert_eq!(whole(Framing::efficientdet_eval([64, 64], Resampling::Legacy)), Some([0.0, 3.0, 63.0, 63.0]));
    let narrow = Framing::efficientdet_eval([64, 128], Resampling::Legacy);
    assert_eq!(whole(narrow.clone()), Some([0.0, 3.0, 64.0, 63.0]), "the image ends before the canvas does");
    assert_eq!(narrow.place([64, 64], &mut rng(0)).bbox([3.0, 63.0, 9.0, 64.0]), None, "nothing of it is left");
}

/// One black sample.
struct Fixed(Objects);

impl Dataset for Fixed {
    type Target = Objects;

    fn len(&self) -> usize {
        1
    }

    fn class_names(&self) -> &[String] {
        &[]
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [8, 8]
    }

    fn load(&self, _: usize, _: &mut Philox, _: &mut Scratch, _: &mut [u8]) -> Result<Objects, DataError> {
        Ok(self.0.clone())
    }

    fn source(&self, _: usize) -> String {
        "fixed".into()
    }

    fn identity(&self) -> String {
        "fixed".into()
    }
}

#[test]
fn the_largest_objects_are_kept_in_their_order() {
    let object = |side: f64, class: u32| Object { bbox: [1.0, 1.0, 1.0 + side, 1.0 + side], class, mask: None };
    let objects = [object(2.0, 1), object(5.0, 2), object(3.0, 3), object(5.0, 4), object(2.0, 5)];
    let placement = Framing::fit([8, 8]).place([8, 8], &mut rng(0));
    let layout = ObjectLayout { max_objects: 4, first_class: 0, crop: None };
    let set = Fixed(Objects::new(7, objects.to_vec()).place(&placement));
    let samples = ImageSamples::new(Arc::new(set), layout).unwrap();
    let mut sample = samples.empty_sample();
    samples.load_sample(0, SampleKey { seed: 0, epoch: 0, index: 0 }, &mut sample).unwrap();
    let feeds = samples.batch_of(&[sample]);
    assert_eq!(feeds.i32("classes"), [1, 2, 3, 4]);
    assert_eq!((feeds.i32("count"), feeds.i32("dropped"), feeds.i32("ids")), (&[4][..], &[1][..], &[7][..]));
    assert_eq!(feeds.f32("boxes")[4..8], [1.0, 1.0, 6.0, 6.0]);
    assert!(Objects::fields(&layout).len() == 7 && feeds.u8("crops").is_empty());
}

#[test]
fn crops_of_masks_take_samples_as_crop_and_resize_does() {
    // Columns 2 and 3, rows 1 to 4, of a canvas of 6 x 8.
    let mask = ObjectMask { left: 2, top: 1, width: 2, pixels: vec![true; 8] };
    let mut out = [9; 9];
    // The box as a share of the canvas, times the last pixel: columns 1.75, 2.625, 3.5; rows 0.8333, 2.5, 4.1667.
    mask.crop([2.0, 1.0, 4.0, 5.0], [6, 8], &mut out, 3);
    let columns = [0.75, 1.0, 0.5];
    let rows = [1.0 / 1.2, 1.0, 1.0 - 0.1 / 0.6];
    for (i, &value) in out.iter().enumerate() {
        let expected: f64 = 255.0 * columns[i % 3] * rows[i / 3];
        assert!((f64::from(value) - expected).abs() < 0.51, "{i}: {value}, not {expected}");
    }
    mask.crop([-4.0, 0.0, 4.0, 6.0], [6, 8], &mut out, 3);
    assert_eq!([out[0], out[3], out[6]], [0; 3], "samples outside the canvas are 0");
}

#[test]
fn images_of_several_sizes_are_loaded_size_by_size() {
    let layout = ObjectLayout { max_objects: 100, first_class: 0, crop: None };
    let Some(coco) = Coco::open("val", framings()[0].clone(), 30) else { return };
    let coco = Arc::new(coco);
    let error = ImageSamples::new(Arc::clone(&coco), layout).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("a batch has images of one size") && error.contains(".jpg"), "{error}");
    let parts = ImageSamples::by_size(&coco, &layout);
    assert_eq!(parts.len(), 2);
    let mut ids: Vec<i32> = Vec::new();
    for part in parts {
        let [height, width] = part.size();
        for batch in batches(Arc::new(part), 2) {
            assert_eq!(batch.feeds.u8("images").len(), 3 * height * width * 3);
            let of_first_epoch = batch.feeds.i32("ids")[..batch.samples].iter().filter(|_| batch.epoch == 0);
            for &id in of_first_epoch.clone() {
                assert_eq!(coco.image_size(id as usize), [height, width]);
            }
            ids.extend(of_first_epoch);
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..30).collect::<Vec<_>>(), "every image comes once");
}
