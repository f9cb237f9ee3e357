// Package doctor_test damages databases, mostly by SQL. Doctor must find each damage, and find nothing after its fix.
package doctor_test
