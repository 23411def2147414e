// The files of the first generation: its image for each architecture, and its PTX. They are in
// libresident_image.so, so that a bundle contains them once, and not once in every program.
#ifndef RESIDENT_KERNELS_RESIDENT_IMAGE_FILES_H_
#define RESIDENT_KERNELS_RESIDENT_IMAGE_FILES_H_

namespace resident {

// A file that was compressed with zstd.
struct ImageFile {
  int architecture;  // 0: PTX
  const char* begin;
  const char* end;
};

struct ImageFiles {
  const char* checksum;
  const ImageFile* images;
  int image_count;
  ImageFile ptx;  // Zero-terminated texts, one after the other.
};

// The checksum of the files, part of the library and of each program that was built with it. Host
// and device code share their data structures without a version number: a program must not use
// the files of another build, which it finds if only one of the two was replaced.
extern const char kImageChecksum[];

}  // namespace resident

// The only symbol that the library exports. The symbols of the files have no size, so that a
// program could not refer to them in a shared library.
extern "C" const resident::ImageFiles* resident_image_files();

#endif  // RESIDENT_KERNELS_RESIDENT_IMAGE_FILES_H_
