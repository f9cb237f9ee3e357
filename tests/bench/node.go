package main

func nodeVersions() []string { return nil }
