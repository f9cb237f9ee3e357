// Package files delivers what platform makes for people to a folder, outside the database and its transactions: what is
// delivered twice must come to the same as once.
package files
