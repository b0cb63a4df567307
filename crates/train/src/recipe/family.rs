//! The part of a recipe that is its family's own.

use super::Recipe;
use super::parse::Problem;
use super::section::{Field, Reader, Writer};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Sections that a family of models adds to recipes, and fields that it adds to the sections of all.
pub trait FamilySections: Any + fmt::Debug + PartialEq + Send + Sync + Sized {
    /// Each section with its fields.
    fn fields() -> Vec<(&'static str, &'static [Field])>;

    /// # Errors
    /// As [`Reader::take`].
    fn read(reader: &mut Reader) -> Result<Self, Problem>;

    /// Adds all fields.
    fn write(&self, writer: &mut Writer);

    /// Checks what fields say together.
    ///
    /// # Errors
    /// Path and problem of a field.
    fn check(&self, _recipe: &Recipe) -> Result<(), Problem> {
        Ok(())
    }
}

/// Declares [`FamilySections`]: `"SECTION" => pub NAME: TYPE,` with `TYPE` a [`Section`](super::Section). A function
/// `check(&Self, &Recipe) -> Result<(), Problem>` may follow.
macro_rules! family_recipe {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $section:literal => pub $field:ident: $ty:ty,)*
    } $(check $check:path;)?) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl $crate::recipe::FamilySections for $name {
            fn fields() -> Vec<(&'static str, &'static [$crate::recipe::Field])> {
                vec![$(($section, <$ty as $crate::recipe::Section>::FIELDS),)*]
            }

            fn read(reader: &mut $crate::recipe::Reader) -> Result<Self, $crate::recipe::Problem> {
                Ok(Self { $($field: reader.take($section)?,)* })
            }

            fn write(&self, writer: &mut $crate::recipe::Writer) {
                $(writer.put($section, &self.$field);)*
            }

            $(fn check(&self, recipe: &$crate::Recipe) -> Result<(), $crate::recipe::Problem> {
                $check(self, recipe)
            })?
        }
    };
}
pub(crate) use family_recipe;

/// How the own part of a family's recipes is read.
#[derive(Clone, Copy)]
pub struct RecipePart {
    pub(super) fields: fn() -> Vec<(&'static str, &'static [Field])>,
    pub(super) read: fn(&mut Reader) -> Result<OwnPart, Problem>,
}

impl RecipePart {
    /// For the sections of `T`.
    pub fn of<T: FamilySections>() -> Self {
        Self { fields: T::fields, read: |reader| Ok(OwnPart(Arc::new(T::read(reader)?))) }
    }
}

/// What the recipe of one family says beside what all say.
#[derive(Clone)]
pub struct OwnPart(Arc<dyn AnySections>);

impl OwnPart {
    pub(super) fn get<T: FamilySections>(&self) -> Option<&T> {
        self.0.any().downcast_ref()
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
    }

    pub(super) fn check(&self, recipe: &Recipe) -> Result<(), Problem> {
        self.0.check(recipe)
    }
}

impl fmt::Debug for OwnPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for OwnPart {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

/// [`FamilySections`] behind a pointer.
trait AnySections: fmt::Debug + Send + Sync {
    fn any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn AnySections) -> bool;
    fn write(&self, writer: &mut Writer);
    fn check(&self, recipe: &Recipe) -> Result<(), Problem>;
}

impl<T: FamilySections> AnySections for T {
    fn any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn AnySections) -> bool {
        other.any().downcast_ref::<T>() == Some(self)
    }

    fn write(&self, writer: &mut Writer) {
        FamilySections::write(self, writer);
    }

    fn check(&self, recipe: &Recipe) -> Result<(), Problem> {
        FamilySections::check(self, recipe)
    }
}
