"""What the service keeps: manifests and blobs on disk, in memory and in a bucket."""
